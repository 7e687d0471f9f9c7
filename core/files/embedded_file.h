// EmbeddedFile: a file of the source tree that is compiled into the program (octavo_embed() in
// cmake/OctavoLibrary.cmake).
#pragma once

#include <span>

namespace octavo {

struct EmbeddedFile {
  const char* name;  // File name without folder and extension.
  const char* text;
};

}  // namespace octavo
