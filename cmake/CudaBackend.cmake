# Finds the dependencies of the CUDA backend: the toolkit (with cuBLASLt), cuDNN 9, its header-only C++ frontend, and NCCL. If one
# is missing, names it with what to install, and the CPU program is built. FlashAttention-3's sources are optional; cuDNN computes
# attention without them.
set(OCTAVO_HAS_CUDA OFF)
set(OCTAVO_HAS_FLASH_ATTENTION OFF)
set(octavo_cuda_missing "")

if(OCTAVO_CUDA)
  find_program(OCTAVO_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(OCTAVO_NVCC)
    set(CMAKE_CUDA_COMPILER ${OCTAVO_NVCC})
    # The -gencode flag below sets the architecture: sm_90a has instructions that sm_90 lacks.
    if(CMAKE_CUDA_ARCHITECTURES)
      message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES is ${CMAKE_CUDA_ARCHITECTURES}, which Octavo does not read: set OCTAVO_CUDA_GENCODE, "
                          "now ${OCTAVO_CUDA_GENCODE}, instead")
    endif()
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    include(CheckLanguage)
    check_language(CUDA)
  endif()
  if(CMAKE_CUDA_COMPILER AND OCTAVO_NVCC)
    get_filename_component(cuda_root ${OCTAVO_NVCC} DIRECTORY)
    get_filename_component(cuda_root ${cuda_root} DIRECTORY)
    find_path(CUDART_INCLUDE_DIR cuda_runtime_api.h HINTS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include)
    set(cuda_lib_hints ${cuda_root}/lib64 ${cuda_root}/lib ${cuda_root}/targets/x86_64-linux/lib)
    find_library(CUDART_LIBRARY NAMES cudart HINTS ${cuda_lib_hints})
    find_library(CUBLASLT_LIBRARY NAMES cublasLt HINTS ${cuda_lib_hints})
    find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${cuda_root}/include)
    find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${cuda_lib_hints})
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${cuda_root}/include)
    find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${cuda_lib_hints})
    find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
              HINTS ${CMAKE_SOURCE_DIR}/.deps/cudnn_frontend/include ENV CUDNN_FRONTEND_PATH PATH_SUFFIXES include)
    foreach(item
            "CUDART_LIBRARY|the CUDA runtime|the CUDA toolkit 12.8 or newer"
            "CUDART_INCLUDE_DIR|the CUDA runtime headers|the CUDA toolkit 12.8 or newer"
            "CUBLASLT_LIBRARY|cuBLASLt|the CUDA toolkit's libcublas-dev"
            "CUDNN_LIBRARY|cuDNN|cuDNN 9 (libcudnn9-dev-cuda-13)"
            "CUDNN_INCLUDE_DIR|the cuDNN headers|cuDNN 9 (libcudnn9-dev-cuda-13)"
            "NCCL_LIBRARY|NCCL|libnccl-dev"
            "NCCL_INCLUDE_DIR|the NCCL headers|libnccl-dev"
            "CUDNN_FRONTEND_INCLUDE_DIR|cuDNN's C++ frontend headers|them with scripts/setup.sh, or set CUDNN_FRONTEND_PATH")
      string(REPLACE "|" ";" item "${item}")
      list(GET item 0 variable)
      list(GET item 1 what)
      list(GET item 2 install)
      if(NOT ${variable})
        list(APPEND octavo_cuda_missing "${what} (install ${install})")
      endif()
    endforeach()
    if(NOT octavo_cuda_missing)
      enable_language(CUDA)
      if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 and newer accept the option.
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
      endif()
      set(OCTAVO_HAS_CUDA ON)
      find_path(FLASH_ATTENTION_DIR hopper/flash_bwd_launch_template.h
                HINTS ENV FLASH_ATTENTION_PATH ${CMAKE_SOURCE_DIR}/.deps/flash_attention)
    endif()
  else()
    list(APPEND octavo_cuda_missing "a working nvcc (install the CUDA toolkit 12.8 or newer)")
  endif()
endif()

if(OCTAVO_HAS_CUDA)
  # octavo_cuda is the runtime API only. octavo_cuda_libraries adds cuDNN and the headers of cuBLASLt, for the few files that call
  # them.
  add_library(octavo_cuda INTERFACE)
  target_include_directories(octavo_cuda SYSTEM INTERFACE ${CUDART_INCLUDE_DIR})
  target_link_libraries(octavo_cuda INTERFACE ${CUDART_LIBRARY})
  set(octavo_nvcc_flags -gencode=${OCTAVO_CUDA_GENCODE} -O3 --expt-relaxed-constexpr -lineinfo
      -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter $<$<BOOL:${OCTAVO_WERROR}>:--Werror=all-warnings>)
  target_compile_options(octavo_cuda INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${octavo_nvcc_flags}>")
  add_library(octavo_cuda_libraries INTERFACE)
  target_include_directories(octavo_cuda_libraries SYSTEM INTERFACE ${CUDNN_INCLUDE_DIR} ${CUDNN_FRONTEND_INCLUDE_DIR})
  target_link_libraries(octavo_cuda_libraries INTERFACE octavo_cuda ${CUDNN_LIBRARY})
  add_library(octavo_nccl INTERFACE)
  target_include_directories(octavo_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
  target_link_libraries(octavo_nccl INTERFACE octavo_cuda ${NCCL_LIBRARY})
  message(STATUS "CUDA backend: on (${OCTAVO_CUDA_GENCODE})")
  if(EXISTS "${FLASH_ATTENTION_DIR}/hopper/flash_bwd_launch_template.h" AND OCTAVO_CUDA_GENCODE MATCHES 90a
     AND EXISTS "${FLASH_ATTENTION_DIR}/csrc/cutlass/include/cute/tensor.hpp")
    set(OCTAVO_HAS_FLASH_ATTENTION ON)
    # The headers of FlashAttention's kernels, compiled as their authors compile them.
    add_library(octavo_flash_attention_headers INTERFACE)
    target_include_directories(octavo_flash_attention_headers SYSTEM INTERFACE
                               ${FLASH_ATTENTION_DIR}/hopper ${FLASH_ATTENTION_DIR}/csrc/cutlass/include)
    message(STATUS "FlashAttention: on (${FLASH_ATTENTION_DIR})")
  else()
    message(STATUS "FlashAttention: off, cuDNN attends; fetch it with scripts/setup.sh, or set FLASH_ATTENTION_PATH")
  endif()
else()
  foreach(missing ${octavo_cuda_missing})
    message(STATUS "CUDA backend: missing ${missing}")
  endforeach()
  message(STATUS "CUDA backend: off, building the CPU program")
endif()

# Generates the one header that says what this build contains. `if constexpr (kHasCuda)` is the only switch in the code.
foreach(part cuda flash_attention)
  string(TOUPPER OCTAVO_HAS_${part} has)
  if(${has})
    set(octavo_has_${part}_literal true)
  else()
    set(octavo_has_${part}_literal false)
  endif()
endforeach()
configure_file(${CMAKE_SOURCE_DIR}/cmake/build_config.h.in ${CMAKE_BINARY_DIR}/generated/build_config.h @ONLY)
