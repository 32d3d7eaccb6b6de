# A guest of 900 bytes for QEMU's -kernel (multiboot): it writes a dot to the serial line with each tick of
# the timer, and turns itself off when the ACPI power button is pressed; with DEAF it does not. With BUSY it
# changes 4 MiB of its memory with each tick, so that a live migration of limited bandwidth has no end.
.code32
.set MAGIC, 0x1BADB002
.text
.globl _start
.align 4
.long MAGIC, 0, -MAGIC
_start:
    cli
    lgdt gdtr
    ljmp $8, $1f
1:  mov $16, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov $0x80000, %esp
    mov $handler, %eax
    movw %ax, idt+64
    movw $8, idt+66
    movw $0x8e00, idt+68
    shr $16, %eax
    movw %ax, idt+70
    lidt idtr
    mov $0xfe, %al
    out %al, $0x21
    mov $0xff, %al
    out %al, $0xa1
.ifndef DEAF
    mov $0x602, %dx
    mov $0x100, %ax
    out %ax, %dx
.endif
    sti
2:  hlt
    mov $0x3f8, %dx
    mov $'.', %al
    out %al, %dx
.ifdef BUSY
    mov $PASSES, %ecx
4:  mov $0x200000, %edi
3:  incl (%edi)
    add $4096, %edi
    cmp $0x600000, %edi
    jb 3b
    dec %ecx
    jnz 4b
.endif
.ifndef DEAF
    mov $0x600, %dx
    in %dx, %ax
    test $0x100, %ax
    jz 2b
    mov $0x604, %dx
    mov $0x2000, %ax
    out %ax, %dx
.endif
    jmp 2b
handler:
    push %eax
    mov $0x20, %al
    out %al, $0x20
    pop %eax
    iret
.align 8
gdt: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
idt: .fill 16, 8, 0
gdtr: .word 23
    .long gdt
idtr: .word 127
    .long idt
