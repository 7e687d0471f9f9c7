# octavo_library(NAME LIBRARY...): the sources of a folder as the static library octavo_NAME, which needs the LIBRARYs,
# with what stands in them. What calls a vendor's library is a file named after it; CUDA's are left out without CUDA.
function(octavo_library name)
  file(GLOB sources CONFIGURE_DEPENDS *.cpp *.cu)
  if(NOT OCTAVO_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "(\\.cu|_(cuda|cublaslt|cudnn|nccl)\\.cpp)$")
  endif()
  add_library(octavo_${name} STATIC ${sources})
  target_link_libraries(octavo_${name} PUBLIC ${ARGN})
endfunction()

# The headers that nearly every file includes, compiled once: octavo_headers is the library whose precompiled header
# the targets of this project use.
