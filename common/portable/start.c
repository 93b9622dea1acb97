// SPDX-License-Identifier: Apache-2.0
// The first code of a portable program, in the place of glibc's Scrt1.o. A Scrt1.o of glibc 2.34 or
// later leaves it to __libc_start_main to run constructors; an older __libc_start_main expects two
// functions for that and, given none, starts the program without. We import the older one, which
// newer glibcs have too.
#include <stddef.h>

typedef void Initializer(int argc, char** argv, char** environment);

extern Initializer* __preinit_array_start[] __attribute__((visibility("hidden")));
extern Initializer* __preinit_array_end[] __attribute__((visibility("hidden")));
extern Initializer* __init_array_start[] __attribute__((visibility("hidden")));
extern Initializer* __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void) __attribute__((visibility("hidden")));

int main(int argc, char** argv, char** environment);
int __libc_start_main(int (*program)(int, char**, char**), int argc, char** argv, Initializer* init,
                      void (*fini)(void), void (*loader_fini)(void), void* stack_end);

static void RunConstructors(int argc, char** argv, char** environment) {
  const ptrdiff_t early = __preinit_array_end - __preinit_array_start;
  for (ptrdiff_t i = 0; i < early; ++i) __preinit_array_start[i](argc, argv, environment);
  _init();
  const ptrdiff_t count = __init_array_end - __init_array_start;
  for (ptrdiff_t i = 0; i < count; ++i) __init_array_start[i](argc, argv, environment);
}

// The loader runs what is in .fini_array, also for programs.
static void NothingMore(void) {}

// `stack` as the kernel has laid it out: argc, argv, a null, the environment.
__attribute__((used, noreturn)) static void Begin(long* stack, void (*loader_fini)(void)) {
  __libc_start_main(main, (int)stack[0], (char**)(stack + 1), RunConstructors, NothingMore,
                    loader_fini, stack);
  __builtin_trap();
}

#if defined(__x86_64__)
// The psABI: rdx has the loader's function, rsp the arguments; rbp marks the outermost frame.
__asm__(
    ".globl _start\n"
    ".type _start, %function\n"
    "_start:\n"
    "  .cfi_startproc\n"
    "  .cfi_undefined rip\n"
    "  endbr64\n"
    "  xor %ebp, %ebp\n"
    "  mov %rsp, %rdi\n"
    "  mov %rdx, %rsi\n"
    "  and $-16, %rsp\n"
    "  call Begin\n"
    "  hlt\n"
    "  .cfi_endproc\n");
#elif defined(__aarch64__)
// The psABI: x0 has the loader's function, sp the arguments; x29 and x30 mark the outermost frame.
__asm__(
    ".globl _start\n"
    ".type _start, %function\n"
    "_start:\n"
    "  .cfi_startproc\n"
    "  .cfi_undefined x30\n"
    "  hint #34\n"  // bti c, where the processor has it
    "  mov x29, #0\n"
    "  mov x30, #0\n"
    "  mov x1, x0\n"
    "  mov x0, sp\n"
    "  bl Begin\n"
    "  brk #1000\n"
    "  .cfi_endproc\n");
#else
#error "no start file for this machine"
#endif
