package box

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// InitPath is the path of [Init] in an image.
const InitPath = "/.dormouse-init"

// Init returns an ELF program that starts another program as its child, and does not exit when the
// child does. The ELF program reaps orphans, but not its child: gVisor can then say at any time with
// which status the child has exited.
func Init() ([]byte, error) {
	said := []byte("dormouse-keeper: there is no such program in the box\n")
	// The comments are the instructions. A name with a colon is a label.
	amd64 := []byte{
		0x4c, 0x8d, 0x64, 0x24, 0x10, 0x4d, 0x89, 0xe5, // lea r12, [rsp+16]; mov r13, r12
		0x49, 0x8b, 0x45, 0, 0x49, 0x83, 0xc5, 8, // find: mov rax, [r13]; add r13, 8
		0x80, 0x38, 0, 0x75, 0xf3, // cmp byte [rax], 0; jne find
		0x48, 0x8b, 0x04, 0x24, 0x4c, 0x8d, 0x74, 0xc4, 0x10, // mov rax, [rsp]; lea r14, [rsp+rax*8+16]
		0xbf, 0x11, 0x41, 0, 0, 0x31, 0xf6, 0x31, 0xd2, 0x45, 0x31, 0xd2, 0x45, 0x31, 0xc0, // mov edi, CLONE_VM|CLONE_VFORK|SIGCHLD; esi, edx, r10d, r8d = 0
		0xb8, 56, 0, 0, 0, 0x0f, 0x05, 0x85, 0xc0, 0x74, 0x41, // clone; test eax, eax; jz child
		0x89, 0xc3, 0x48, 0x81, 0xec, 0x80, 0, 0, 0, // mov ebx, eax; sub rsp, 128
		0x31, 0xff, 0x31, 0xf6, 0x48, 0x89, 0xe2, // reap: edi, esi = 0; mov rdx, rsp
		0x41, 0xba, 4, 0, 0, 1, 0x45, 0x31, 0xc0, 0xb8, 247, 0, 0, 0, 0x0f, 0x05, // mov r10d, WEXITED|WNOWAIT; r8d = 0; waitid
		0x8b, 0x7c, 0x24, 12, 0x39, 0xdf, 0x74, 0x10, // mov edi, [rsp+12]; cmp edi, ebx; je over
		0x31, 0xf6, 0x31, 0xd2, 0x45, 0x31, 0xd2, 0xb8, 61, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xd1, // esi, edx, r10d = 0; wait4; jmp reap
		0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7, // over: pause; jmp over
		0xb8, 112, 0, 0, 0, 0x0f, 0x05, // child: setsid
		0x49, 0x8b, 0x3c, 0x24, 0x49, 0x83, 0xc4, 8, 0x80, 0x3f, 0, 0x74, 0x0f, // try: mov rdi, [r12]; add r12, 8; cmp byte [rdi], 0; je none
		0x4c, 0x89, 0xee, 0x4c, 0x89, 0xf2, 0xb8, 59, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xe4, // mov rsi, r13; mov rdx, r14; execve; jmp try
		0xbf, 2, 0, 0, 0, 0x48, 0x8d, 0x35, 24, 0, 0, 0, // none: mov edi, 2; lea rsi, said
		0xba, byte(len(said)), 0, 0, 0, 0xb8, 1, 0, 0, 0, 0x0f, 0x05, // mov edx, its length; write
		0xbf, 127, 0, 0, 0, 0xb8, 231, 0, 0, 0, 0x0f, 0x05, // mov edi, 127; exit_group
	}
	var arm64 []byte
	for _, code := range []uint32{
		0x910003f3, 0x91004274, 0xaa1403f5, // mov x19, sp; add x20, x19, #16; mov x21, x20
		0xf84086a0, 0x39400001, 0xb5ffffc1, // find: ldr x0, [x21], #8; ldrb w1, [x0]; cbnz x1, find
		0xf9400260, 0x8b000e96, // ldr x0, [x19]; add x22, x20, x0, lsl #3
		0xd2882220, 0xaa1f03e1, 0xaa1f03e2, 0xaa1f03e3, 0xaa1f03e4, // mov x0, CLONE_VM|CLONE_VFORK|SIGCHLD; x1 to x4 0
		0xd2801b88, 0xd4000001, 0x340003a0, // clone; cbz w0, child
		0x93407c17, 0xd1020278, 0x9100031f, // sxtw x23, w0; sub x24, x19, #128; mov sp, x24
		0xaa1f03e0, 0xaa1f03e1, 0xaa1803e2, 0xd2800083, 0xf2a02003, 0xaa1f03e4, // reap: x0, x1 0; mov x2, x24; mov x3, WEXITED|WNOWAIT; x4 0
		0xd2800be8, 0xd4000001, 0xb9800f00, 0x6b17001f, 0x540000e0, // waitid; ldrsw x0, [x24, #12]; cmp w0, w23; b.eq over
		0xaa1f03e1, 0xaa1f03e2, 0xaa1f03e3, 0xd2802088, 0xd4000001, 0x17fffff0, // x1 to x3 0; wait4; b reap
		0xaa1f03e0, 0xaa1f03e1, 0xaa1f03e2, 0xaa1f03e3, 0xd2800104, 0xd2800928, 0xd4000001, 0x17fffff9, // over: x0 to x3 0; mov x4, #8; ppoll; b over
		0xd28013a8, 0xd4000001, // child: setsid
		0xf8408680, 0x39400001, 0xb40000c1, // try: ldr x0, [x20], #8; ldrb w1, [x0]; cbz x1, none
		0xaa1503e1, 0xaa1603e2, 0xd2801ba8, 0xd4000001, 0x17fffff9, // mov x1, x21; mov x2, x22; execve; b try
		0xb27f03e0, 0x100000e1, 0xd2800002 | uint32(len(said))<<5, 0xb27a03e8, 0xd4000001, // none: mov x0, #2; adr x1, said; mov x2, its length; write
		0xb2401be0, 0xd2800bc8, 0xd4000001, // mov x0, #127; exit_group
	} {
		arm64 = binary.LittleEndian.AppendUint32(arm64, code)
	}
	return programOf(map[string][]byte{"amd64": append(amd64, said...), "arm64": append(arm64, said...)})
}

// initArgs returns the arguments for [Init]: its own name, the paths at which it looks for the
// program, an empty argument, and the arguments of the program.
func initArgs(args, env []string) []string {
	all := []string{InitPath}
	if strings.Contains(args[0], "/") {
		all = append(all, args[0])
	} else {
		for _, pair := range slices.Backward(env) {
			if dirs, ok := strings.CutPrefix(pair, "PATH="); ok {
				for _, dir := range filepath.SplitList(dirs) {
					all = append(all, path.Join("/", dir, args[0]))
				}
				break
			}
		}
	}
	return append(append(all, ""), args...)
}

// programOf returns an ELF program with the code for this machine's architecture; codes has the
// code by GOARCH.
func programOf(codes map[string][]byte) ([]byte, error) {
	code, machine := codes[runtime.GOARCH], map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH]
	if code == nil {
		return nil, fmt.Errorf("there are no boxes on %s", runtime.GOARCH)
	}
	const at, headers = 0x400000, 64 + 56
	size := uint64(headers + len(code))
	var b bytes.Buffer
	b.WriteString("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	for _, v := range []any{
		uint16(2), machine, uint32(1), uint64(at + headers), uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(at), uint64(at), size, size, uint64(0x1000),
	} {
		_ = binary.Write(&b, binary.LittleEndian, v) // never fails
	}
	b.Write(code)
	return b.Bytes(), nil
}
