// Ends the program with a clear message on a processor that lacks instructions that the build uses. Without this check
// the program would end with SIGILL.
//
// The check runs before all other code of the program, so this file is compiled for the oldest processors
// (app/CMakeLists.txt), includes nothing that other files share with it and calls only the C library.
#include <unistd.h>

#include <cstring>

namespace {

void print(const char* text) { static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text))); }

// Checks for the instructions of x86-64-v3 that the compiler uses.
[[gnu::constructor(101)]] void check_cpu() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
      __builtin_cpu_supports("bmi2")) {
    return;
  }
  print("octavo: this processor lacks AVX2, FMA, BMI or BMI2, which this build (" OCTAVO_CPU_ARCH
        ") needs; build for it with -DOCTAVO_CPU_ARCH=native\n");
  ::_exit(1);
}

}  // namespace
