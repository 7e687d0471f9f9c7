# One interface target carries the options of every Octavo target.
add_library(octavo_options INTERFACE)
target_include_directories(octavo_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)

set(octavo_cxx_flags -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion $<$<BOOL:${OCTAVO_WERROR}>:-Werror> -fno-math-errno -fno-trapping-math)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND OCTAVO_CPU_ARCH)
  list(APPEND octavo_cxx_flags -march=${OCTAVO_CPU_ARCH})
endif()
if(OCTAVO_SANITIZE)
  list(APPEND octavo_cxx_flags -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1)
  # AddressSanitizer finds these errors as well, and these checks take a quarter of the compile time.
  list(APPEND octavo_cxx_flags -fno-sanitize=null,object-size,vptr)
  # In the tests themselves only memory errors are checked.
  list(APPEND octavo_cxx_flags $<$<STREQUAL:$<TARGET_PROPERTY:SOURCE_DIR>,${CMAKE_SOURCE_DIR}/tests>:-fno-sanitize=undefined>)
  target_link_options(octavo_options INTERFACE -fsanitize=address,undefined)
endif()
if(OCTAVO_FUZZ)
  # libFuzzer observes the branches that are taken. Observing comparisons too (-fsanitize=fuzzer-no-link) would cost a third of
  # the time, and the targets repair what only a comparison would find.
  list(APPEND octavo_cxx_flags -fsanitize-coverage=inline-8bit-counters,pc-table)
endif()
target_compile_options(octavo_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${octavo_cxx_flags}>")
