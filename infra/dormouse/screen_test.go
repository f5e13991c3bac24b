package dormouse

import (
	"io"
	"os"
	"testing"

	"github.com/creack/pty"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestKeysAreReadWithoutEnter(t *testing.T) {
	master, tty, err := pty.Open()
	commontest.OK(t, err)
	defer func() { _, _ = master.Close(), tty.Close() }()
	// The terminal is not this test's own, so the check for that is left out.
	k := keyboardOf(tty)
	if k == nil {
		t.Fatal("the modes of the terminal cannot be set")
	}
	pressed := make(chan string)
	go k.read(map[byte]func(){'v': func() { pressed <- "v" }, 'q': func() { pressed <- "q" }})
	for _, key := range []string{"v", "q"} {
		_, err := io.WriteString(master, "x"+key)
		commontest.OK(t, err)
		commontest.Equal(t, key, <-pressed)
	}
	k.giveBack()
	if file, err := os.Open(os.DevNull); err != nil || takeKeyboard(file) != nil {
		t.Error("no terminal was taken for one", err)
	}
}
