// Command told is a stdio server of an image. The result of each call is what it was started
// with.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if json.Unmarshal(in.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		var result any = map[string]any{
			"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]any{"name": "told", "version": "1"},
		}
		if m.Method == "tools/call" {
			folder, _ := os.Getwd()
			result = map[string]any{"args": os.Args, "env": os.Environ(), "folder": folder, "user": os.Getuid(), "group": os.Getgid()}
		}
		answer, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result})
		_, _ = fmt.Println(string(answer))
	}
}
