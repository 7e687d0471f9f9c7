// Names the commit that this program was built from.
#pragma once

namespace octavo {

// Returns a commit such as "dbf46c3", with "-dirty" if files were changed, or "unknown" if the sources were not in a
// git checkout.
const char* build_commit();

}  // namespace octavo
