"""A program that computes on the first NVIDIA card, with nothing but the driver's library.

python -m tests.support.cuda_load SECONDS
"""

from __future__ import annotations

import ctypes
import sys
import time

MEMORY = 1 << 30
BLOCKS, THREADS = 1024, 256
ROUNDS = 2_000_000

KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u32 rounds)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .f32 %f<2>;
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, 0;
    mov.f32 %f1, 0f3F800000;
again:
    fma.rn.f32 %f1, %f1, %f1, %f1;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p, %r2, %r1;
    @%p bra again;
    ret;
}
\0"""


def main() -> None:
    """Hold a gigabyte of the card's memory and compute until the time is over."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            sys.exit(f"{name}: error {code}")

    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    memory, rounds = ctypes.c_uint64(), ctypes.c_uint32(ROUNDS)
    call("cuInit", 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(MEMORY))
    call("cuModuleLoadData", ctypes.byref(module), KERNEL)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(rounds))
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        call("cuLaunchKernel", kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, arguments, None)
        call("cuCtxSynchronize")


if __name__ == "__main__":
    main()
