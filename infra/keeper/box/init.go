package box

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
)

// InitPath is where an image has [Init].
const InitPath = "/.init"

// Init returns a program that ignores SIGCHLD, so that its kernel reaps whatever becomes its
// child, and then waits for ever.
func Init() ([]byte, error) {
	ignore := append([]byte{1}, make([]byte, 31)...) // SIG_IGN as handler; no flags, no mask
	amd64 := []byte{
		0xb8, 13, 0, 0, 0, // mov eax, rt_sigaction
		0xbf, 17, 0, 0, 0, // mov edi, SIGCHLD
		0x48, 0x8d, 0x35, 23, 0, 0, 0, // lea rsi, ignore
		0x31, 0xd2, 0x41, 0xba, 8, 0, 0, 0, 0x0f, 0x05, // xor edx, edx; mov r10d, 8; syscall
		0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7, // wait: mov eax, pause; syscall; jmp wait
		0, 0, 0, 0,
	}
	var arm64 []byte
	for _, code := range []uint32{
		0xd28010c8, 0xd2800220, // mov x8, rt_sigaction; mov x0, SIGCHLD
		0x10000181, 0xd2800002, 0xd2800103, 0xd4000001, // adr x1, ignore; mov x2, #0; mov x3, #8; svc #0
		0xd2800928, 0xd2800000, 0xd2800001, 0xd2800002, 0xd2800003, 0xd2800104, 0xd4000001, // wait: mov x8, ppoll; x0 to x3 0; mov x4, #8; svc #0
		0x17fffff9, // b wait
	} {
		arm64 = binary.LittleEndian.AppendUint32(arm64, code)
	}
	return programOf(map[string][]byte{"amd64": append(amd64, ignore...), "arm64": append(arm64, ignore...)})
}

// programOf returns an ELF program of this machine's code.
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
		_ = binary.Write(&b, binary.LittleEndian, v) // into memory
	}
	b.Write(code)
	return b.Bytes(), nil
}
