// Command dormouse is the command line whose dormouse run executes the functions as
// programs, behind an imitation of AWS. It is for tests. DORMOUSE_EMULATOR has the options
// as JSON.
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
	// The functions' programs are in the folder above, where make build puts them.
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
