// Command dormouse is the command line of Dormouse for tests. It executes the Lambda functions as
// programs, behind an imitation of AWS. The environment variable DORMOUSE_EMULATOR has
// [emulator.Options] as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/dormouse"
	"github.com/dormouse-mcp/dormouse/infra/internal/emulator"
)

func main() {
	bin, err := os.Executable()
	// The programs of the functions are in the parent of this program's folder, where make build
	// puts them.
	o := emulator.Options{Programs: filepath.Dir(filepath.Dir(bin)), SleepAfter: 10 * time.Second}
	if text := os.Getenv("DORMOUSE_EMULATOR"); err == nil && text != "" {
		err = json.Unmarshal([]byte(text), &o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the options of the emulator:", err)
		os.Exit(1)
	}
	dormouse.Program{Functions: emulator.Open(o)}.Main()
}
