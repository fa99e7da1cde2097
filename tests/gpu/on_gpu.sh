#!/usr/bin/env bash
# Muster on one real GPU, from the bundle that `./run package` makes: several processes that NCCL
# takes for as many hosts train, are killed and stopped, re-form and grow, hundreds of times.
#
#   ./on_gpu.sh [--reforms 200] [--pause-every 10] [--keep]
#
# The last line is one JSON object: reforms, abort_ms, init_ms, kill_to_step_ms, and what the
# re-forms left behind in the process that survived them all (growth).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# find_library NAME…: where one of these lies, among the linker's libraries and those of Python's.
find_library() {
  local name found
  for name in "$@"; do
    if ldconfig -p 2>/dev/null | grep -q "^[[:space:]]*$name "; then
      echo "$name"
      return
    fi
  done
  for name in "$@"; do
    found=$(find /usr/local /usr/lib /opt /root/.local "$HOME" -name "$name" -print -quit 2>/dev/null) || true
    if [[ -n $found ]]; then
      echo "$found"
      return
    fi
  done
}

export MUSTER_CUDART_LIBRARY=${MUSTER_CUDART_LIBRARY:-$(find_library libcudart.so.13 libcudart.so.12)}
export MUSTER_NCCL_LIBRARY=${MUSTER_NCCL_LIBRARY:-$(find_library libnccl.so.2)}

# Several ranks on one GPU: each is a host of its own (NCCL_HOSTID, set for each node), and they
# talk over sockets on the loopback interface.
export NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1
export NCCL_SHM_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_CUMEM_ENABLE=0
export NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_CTAS=2 NCCL_BUFFSIZE=1048576 NCCL_RAS_ENABLE=0

"$here/bin/muster" gpu >&2 || { echo "on_gpu.sh: there is no GPU to run on" >&2; exit 1; }
exec "$here/bin/muster-chaos" bench gpu --text "$here/share/text" "$@"
