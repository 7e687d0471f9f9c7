# The headers that nearly every file includes, compiled once. All of this project's targets are compiled with the same
# options, so they share them; a file includes what it uses all the same, and clang-tidy reads it without.
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/generated/empty.cpp CONTENT "")
add_library(octavo_headers OBJECT ${CMAKE_BINARY_DIR}/generated/empty.cpp)
target_link_libraries(octavo_headers PRIVATE octavo_options fmt::fmt nlohmann_json::nlohmann_json OpenMP::OpenMP_CXX)
target_precompile_headers(octavo_headers PRIVATE <algorithm> <cmath> <cstdint> <filesystem> <functional> <map> <memory>
                          <mutex> <optional> <string> <thread> <vector> <fmt/format.h> <nlohmann/json.hpp>)

# octavo_library(NAME LIBRARY...): the sources of a folder as the static library octavo_NAME, which needs the LIBRARYs.
# What calls a vendor's library is a file named after it; CUDA's are left out without CUDA.
function(octavo_library name)
  file(GLOB sources CONFIGURE_DEPENDS *.cpp *.cu)
  file(GLOB cuda_sources *.cu)
  if(NOT OCTAVO_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "(\\.cu|_(cuda|cublaslt|cudnn|nccl)\\.cpp)$")
  endif()
  add_library(octavo_${name} STATIC ${sources})
  target_link_libraries(octavo_${name} PUBLIC ${ARGN})
  target_precompile_headers(octavo_${name} REUSE_FROM octavo_headers)
  # CMake 3.31 would compile these together too.
  set_source_files_properties(${cuda_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
