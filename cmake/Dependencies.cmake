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

# The OpenMP build of OpenBLAS shares its threads with our loops; the pthread build would fight them for the cores.
find_path(OPENBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas-openmp ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp openblas
          REQUIRED)
find_library(OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-openmp REQUIRED)
add_library(octavo_openblas INTERFACE)
target_include_directories(octavo_openblas SYSTEM INTERFACE ${OPENBLAS_INCLUDE_DIR})
target_link_libraries(octavo_openblas INTERFACE ${OPENBLAS_LIBRARY})

add_library(octavo_yaml INTERFACE)
if(TARGET yaml-cpp::yaml-cpp)
  target_link_libraries(octavo_yaml INTERFACE yaml-cpp::yaml-cpp)
else()
  target_link_libraries(octavo_yaml INTERFACE yaml-cpp)
endif()
