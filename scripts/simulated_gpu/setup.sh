#!/usr/bin/env bash
# Get nvcc 11.8 and build the simulator GPGPU-Sim for simulate.py in FOLDER, on Debian 12:
#   bash scripts/simulated_gpu/setup.sh FOLDER [GIT]
#   GIT   the simulator's repository   (https://github.com/gpgpu-sim/gpgpu-sim_distribution)
# nvcc lies in Debian's non-free, which apt need not know: its lists are read into FOLDER. Nothing is installed, and
# nothing needs root.
set -euo pipefail
[ $# -ge 1 ] || { echo "setup.sh: its first lines say what it takes" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
where=$PWD root=$PWD/root

mkdir -p apt/lists/partial apt/parts debs root
apt-get indextargets --format 'deb $(SITE) $(RELEASE) main contrib non-free' \
    'Created-By: Packages' 'Origin: Debian' 'Component: main' | sort -u >apt/sources.list
grep -q . apt/sources.list || { echo "setup.sh: apt knows no source of Debian" >&2; exit 2; }
apt() {
    apt-get -q -o "Dir::Etc::SourceList=$where/apt/sources.list" -o "Dir::Etc::SourceParts=$where/apt/parts" \
        -o "Dir::State::Lists=$where/apt/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= "$@"
}
apt update
(cd debs && apt download nvidia-cuda-toolkit nvidia-cuda-dev libcudart11.0 libnvvm4 libcu++-dev flex bison m4 \
    libsigsegv2 xutils-dev)
for deb in debs/*.deb; do dpkg --fsys-tarfile "$deb" | tar -x -C root --exclude='*.a'; done
rm -r debs

# A tree as NVIDIA's installer makes it. The simulator asks its cuobjdump for the PTX of a program, and shall find what
# simulate.py has laid beside it.
mkdir -p cuda/bin cuda/lib64 cuda/nvvm/bin cuda/nvvm/libdevice
for tool in ptxas fatbinary cudafe++ nvlink bin2c; do ln -sfn "$root/usr/bin/$tool" cuda/bin/; done
cp -r "$root"/usr/lib/nvidia-cuda-toolkit/bin/{nvcc,crt} cuda/bin/
ln -sfn "$root/usr/lib/nvidia-cuda-toolkit/bin/cicc" cuda/nvvm/bin/
ln -sfn "$root/usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc" cuda/nvvm/libdevice/
ln -sfn "$root/usr/include" cuda/
cp -P "$root"/usr/lib/x86_64-linux-gnu/libcudart.so* cuda/lib64/
ar rcs cuda/lib64/libcudadevrt.a
cat >cuda/bin/nvcc.profile <<'END'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
END
printf '#!/bin/sh\n[ "$1" != -lptx ] || echo "PTX file 1: kernels.sm_70.ptx"\n' >cuda/bin/cuobjdump
chmod +x cuda/bin/cuobjdump

[ -d gpgpu-sim ] || git clone -q -b dev "${2:-https://github.com/gpgpu-sim/gpgpu-sim_distribution}" gpgpu-sim
# Bison 3.8 writes comments and tokens of its own into the header that a table is made from; and gcc 12 ends a function
# that returns nothing, though it should, in an endless loop.
sed -i 's:| grep "=" | sed:| grep "=" | grep -v YY | sed "s,/[*].*[*]/,," | sed:' gpgpu-sim/src/cuda-sim/Makefile
sed -i '/^  cudaConfigureCallInternal(gridDim, blockDim, sharedMem, stream);$/{n;s/^}/  return 0;\n}/}' \
    gpgpu-sim/libcuda/cuda_runtime_api.cc
export CUDA_INSTALL_PATH=$where/cuda CUOBJDUMP=$root/usr/bin/cuobjdump
export PATH=$where/cuda/bin:$root/usr/bin:$PATH BISON_PKGDATADIR=$root/usr/share/bison M4=$root/usr/bin/m4
export LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu
set +eu
. gpgpu-sim/setup_environment >/dev/null
# What simulate.py runs its commands with.
export -p | grep -E '^declare -x (PATH|LD_LIBRARY_PATH|\w*(CUDA|GPGPUSIM|PTX|CUOBJDUMP)\w*)=' >env.sh
make -C gpgpu-sim -j2 >build.log 2>&1 || { tail -20 build.log >&2; exit 1; }
