# Libraries every build needs. Debian 12 and Ubuntu 24.04 package names are in scripts/setup.sh.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)

# Products on the CPU (kernels/sgemm.h). oneDNN generates its kernels for what the processor can do; OpenBLAS picks them
# by its model, and on one that is newer than the library may take those of twenty years before. Away from x86-64 oneDNN
# has plain loops alone. The OpenMP builds of both share their threads with our loops; others would fight them for the
# cores.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(octavo_default_products onednn)
else()
  set(octavo_default_products openblas)
endif()
set(OCTAVO_CPU_PRODUCTS ${octavo_default_products} CACHE STRING "Library of the products on the CPU: onednn or openblas")
add_library(octavo_cpu_products INTERFACE)
if(OCTAVO_CPU_PRODUCTS STREQUAL "onednn")
  find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.h REQUIRED)
  find_library(ONEDNN_LIBRARY dnnl REQUIRED)
  target_include_directories(octavo_cpu_products SYSTEM INTERFACE ${ONEDNN_INCLUDE_DIR})
  target_link_libraries(octavo_cpu_products INTERFACE ${ONEDNN_LIBRARY})
elseif(OCTAVO_CPU_PRODUCTS STREQUAL "openblas")
  find_path(OPENBLAS_INCLUDE_DIR cblas.h REQUIRED
            PATH_SUFFIXES openblas-openmp ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp openblas)
  find_library(OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-openmp REQUIRED)
  target_include_directories(octavo_cpu_products SYSTEM INTERFACE ${OPENBLAS_INCLUDE_DIR})
  target_link_libraries(octavo_cpu_products INTERFACE ${OPENBLAS_LIBRARY})
else()
  message(FATAL_ERROR "OCTAVO_CPU_PRODUCTS is ${OCTAVO_CPU_PRODUCTS}, expected onednn or openblas")
endif()

add_library(octavo_yaml INTERFACE)
if(TARGET yaml-cpp::yaml-cpp)
  target_link_libraries(octavo_yaml INTERFACE yaml-cpp::yaml-cpp)
else()
  target_link_libraries(octavo_yaml INTERFACE yaml-cpp)
endif()
