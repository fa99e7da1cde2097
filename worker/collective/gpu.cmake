# Is there what GPUs need at build time: nvcc, and the headers of CUDA's runtime and of NCCL? Their
# libraries are loaded at run time, so nothing is linked.
#
# -DMUSTER_GPU=AUTO (the default: where it can be built), ON (an error where it cannot) or OFF.
# Afterwards MUSTER_GPU is ON or OFF, and muster_gpu_headers has the include directories.
set(MUSTER_GPU AUTO CACHE STRING "Build the way to GPUs: AUTO, ON or OFF")
set_property(CACHE MUSTER_GPU PROPERTY STRINGS AUTO ON OFF)

set(cuda_homes /usr/local/cuda $ENV{CUDA_HOME} $ENV{CUDA_PATH})
find_program(MUSTER_NVCC nvcc HINTS ${cuda_homes} PATH_SUFFIXES bin)
find_path(MUSTER_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_homes} PATH_SUFFIXES include)
find_path(MUSTER_NCCL_INCLUDE nccl.h HINTS ${cuda_homes} $ENV{NCCL_HOME} PATH_SUFFIXES include)
mark_as_advanced(MUSTER_NVCC MUSTER_CUDA_INCLUDE MUSTER_NCCL_INCLUDE)

set(missing)
if(NOT MUSTER_NVCC)
  list(APPEND missing "nvcc")
endif()
if(NOT MUSTER_NCCL_INCLUDE)
  list(APPEND missing "nccl.h")
endif()
if(NOT MUSTER_CUDA_INCLUDE)
  list(APPEND missing "cuda_runtime_api.h")
else()
  # Kernels are loaded with cudaLibraryLoadData, which CUDA has since 12.8.
  file(STRINGS ${MUSTER_CUDA_INCLUDE}/cuda_runtime_api.h version REGEX "define CUDART_VERSION")
  string(REGEX MATCH "[0-9]+" version "${version}")
  if(NOT version OR version LESS 12080)
    list(APPEND missing "a cuda_runtime_api.h of CUDA 12.8 or newer")
  endif()
endif()
list(JOIN missing ", " missing)

if(MUSTER_GPU STREQUAL "AUTO" OR MUSTER_GPU)
  if(NOT missing)
    set(MUSTER_GPU ON)
  elseif(MUSTER_GPU STREQUAL "AUTO")
    message(STATUS "GPU backend left out: ${missing} not found (CUDA_HOME says where to look)")
    set(MUSTER_GPU OFF)
  else()
    message(FATAL_ERROR "MUSTER_GPU is ON, but there is no ${missing}; set CUDA_HOME and NCCL_HOME")
  endif()
else()
  message(STATUS "GPU backend left out: MUSTER_GPU is ${MUSTER_GPU}")
  set(MUSTER_GPU OFF)
endif()

add_library(muster_gpu_headers INTERFACE)
if(MUSTER_GPU)
  target_include_directories(muster_gpu_headers SYSTEM INTERFACE
    ${MUSTER_CUDA_INCLUDE} ${MUSTER_NCCL_INCLUDE})
endif()

# muster_embed_kernels(target file.cu symbol): puts the kernels of file.cu, compiled for sm_80, sm_90
# and, as PTX, whatever comes after, into `target` as bytes:
#   extern "C" const unsigned char symbol[];
#   extern "C" const std::size_t symbol_size;  // 0 when Muster is built without GPUs
function(muster_embed_kernels target file symbol)
  set(SYMBOL ${symbol})
  set(IMAGE ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.fatbin)
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.cc)
  if(MUSTER_GPU)
    set(flags
      -std=c++17 -O3 -Werror=all-warnings
      # The arithmetic of the host, bit for bit: nothing fused, nothing flushed, nothing rounded.
      -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
      -gencode arch=compute_80,code=sm_80
      -gencode arch=compute_90,code=[sm_90,compute_90])
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      list(APPEND flags -ccbin ${CMAKE_CXX_COMPILER})
    endif()
    add_custom_command(
      OUTPUT ${IMAGE}
      COMMAND ${MUSTER_NVCC} -fatbin ${flags} -I${CMAKE_SOURCE_DIR}
              -MD -MF ${IMAGE}.d -MT ${IMAGE}
              -o ${IMAGE} ${CMAKE_CURRENT_SOURCE_DIR}/${file}
      DEPENDS ${file} DEPFILE ${IMAGE}.d
      COMMENT "Compiling kernels ${file}" VERBATIM)
    set(bytes ".incbin \\\"${IMAGE}\\\"\\n")
    set_source_files_properties(${unit} PROPERTIES OBJECT_DEPENDS ${IMAGE})
  else()
    set(bytes "")
  endif()
  file(CONFIGURE OUTPUT ${unit} CONTENT [[
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".global @SYMBOL@\n"
    ".type @SYMBOL@, @object\n"
    "@SYMBOL@:\n"
    "@bytes@"
    "@SYMBOL@_end:\n"
    ".size @SYMBOL@, @SYMBOL@_end - @SYMBOL@\n"
    ".balign 8\n"
    ".global @SYMBOL@_size\n"
    ".type @SYMBOL@_size, @object\n"
    "@SYMBOL@_size:\n"
    ".quad @SYMBOL@_end - @SYMBOL@\n"
    ".size @SYMBOL@_size, 8\n"
    ".popsection\n");
]] @ONLY)
  target_sources(${target} PRIVATE ${unit})
endfunction()
