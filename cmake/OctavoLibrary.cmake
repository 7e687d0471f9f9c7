# Code that only organizes the work of others (app/, checkpoint/, the tests) is compiled with -O1, in two thirds of the time of
# -O3.
set(octavo_arranges -O1)

# Headers that nearly every file includes, compiled once for each set of options. A file still includes what it uses, and
# clang-tidy reads it without precompiled headers.
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/generated/empty.cpp CONTENT "")
function(octavo_precompiled_headers name)
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/generated/empty.cpp)
  target_link_libraries(${name} PRIVATE octavo_options fmt::fmt nlohmann_json::nlohmann_json OpenMP::OpenMP_CXX)
  target_precompile_headers(${name} PRIVATE <algorithm> <cmath> <cstdint> <filesystem> <functional> <map> <memory>
                            <mutex> <optional> <string> <thread> <vector> <fmt/format.h> <nlohmann/json.hpp>)
endfunction()
octavo_precompiled_headers(octavo_headers)
octavo_precompiled_headers(octavo_arranging_headers)
target_compile_options(octavo_arranging_headers PRIVATE ${octavo_arranges})

# octavo_library(NAME LIBRARY...) builds the sources of a folder as the static library octavo_NAME, which needs the LIBRARYs.
# Files named after CUDA libraries are left out without CUDA. OCTAVO_ARRANGES says that the folder and those below only organize
# work.
function(octavo_library name)
  file(GLOB sources CONFIGURE_DEPENDS *.cpp *.cu)
  file(GLOB cuda_sources *.cu)
  if(NOT OCTAVO_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "(\\.cu|_(cuda|cublaslt|cudnn|nccl)\\.cpp)$")
  endif()
  if(NOT OCTAVO_HAS_FLASH_ATTENTION)
    list(FILTER sources EXCLUDE REGEX "_flash\\.(cpp|cu)$")
  endif()
  add_library(octavo_${name} STATIC ${sources})
  target_link_libraries(octavo_${name} PUBLIC ${ARGN})
  if(OCTAVO_ARRANGES)
    target_compile_options(octavo_${name} PRIVATE ${octavo_arranges})
    target_precompile_headers(octavo_${name} REUSE_FROM octavo_arranging_headers)
  else()
    target_precompile_headers(octavo_${name} REUSE_FROM octavo_headers)
  endif()
  # CMake 3.31 would join these files too.
  set_source_files_properties(${cuda_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# octavo_keep_variants(NAME FILE...) keeps the FILEs among the files of octavo_NAME that exist for one library.
function(octavo_keep_variants name)
  get_target_property(sources octavo_${name} SOURCES)
  list(FILTER sources EXCLUDE REGEX "_(onednn|openblas)\\.cpp$")
  set_property(TARGET octavo_${name} PROPERTY SOURCES ${sources} ${ARGN})
endfunction()

# For numbers that must be equal on every device: the compiler must not fuse operations that the code does not fuse.
set(octavo_as_written -ffp-contract=off)

# MPI is used through its C interface, so its old C++ bindings are disabled.
function(octavo_link_mpi name)
  target_link_libraries(octavo_${name} PRIVATE MPI::MPI_C)
  target_compile_definitions(octavo_${name} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
endfunction()

# octavo_embed(NAME FUNCTION FILE...) makes the FILEs, given by their full paths, part of octavo_NAME, where the function FUNCTION
# returns them (core/files/embedded_file.h). A FILE that changes is embedded again.
function(octavo_embed name function)
  set(script ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${function}.cpp)
  add_custom_command(OUTPUT ${source} DEPENDS ${script} ${ARGN} VERBATIM
                     COMMAND ${CMAKE_COMMAND} -DFUNCTION=${function} -DOUTPUT=${source} "-DFILES=${ARGN}" -P ${script})
  target_sources(octavo_${name} PRIVATE ${source})
  # clang-tidy reads joined files before anything is built.
  set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
