/* Hides AVX-512 and AMX from a program when it is loaded into that with LD_PRELOAD: some libraries
   ask only the processor what it can do. From Linux 4.12 on, a process can have its instructions
   CPUID trapped, if the processor or the virtual machine offers this; they are then answered here.

     cc -shared -fPIC -O2 cpuid.c -o cpuid.so && LD_PRELOAD=./cpuid.so program */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <cpuid.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static long allow_cpuid(unsigned long yes) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, yes); }

static void answer(int signal_number, siginfo_t *info, void *context)
{
    greg_t *reg = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned leaf = (unsigned)reg[REG_RAX], part = (unsigned)reg[REG_RCX];
    unsigned a, b, c, d;
    (void)info;
    if (memcmp((const void *)reg[REG_RIP], "\x0f\xa2", 2)) {   /* an error of the program's own */
        signal(signal_number, SIG_DFL);
        return;
    }
    allow_cpuid(1);
    __cpuid_count(leaf, part, a, b, c, d);
    allow_cpuid(0);
    if (leaf == 7 && part == 0) {       /* Intel's manual, volume 2, CPUID, leaf 07H */
        b &= ~0xdc230000u;              /* AVX512F, DQ, IFMA, PF, ER, CD, BW, VL */
        c &= ~0x00005842u;              /* AVX512_VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ */
        d &= ~0x03c0010cu;              /* AVX512_4VNNIW, 4FMAPS, VP2INTERSECT, FP16; AMX */
    } else if (leaf == 7 && part == 1) {
        a &= ~0x00200020u;              /* AVX512_BF16, AMX-FP16 */
        d &= ~0x00080100u;              /* AVX10, AMX-COMPLEX */
    }
    reg[REG_RAX] = a, reg[REG_RBX] = b, reg[REG_RCX] = c, reg[REG_RDX] = d;
    reg[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (!sigaction(SIGSEGV, &action, NULL)) allow_cpuid(0);
}
