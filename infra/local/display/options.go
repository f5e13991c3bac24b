package display

import "io"

// Form is how a Terminal writes.
type Form int

// The forms.
const (
	Records Form = iota // one line for each event, with names and values, for the log of another program
	Lines               // lines for people; nothing is rewritten
	Screen              // as Lines, and the lines at the bottom are rewritten
)

// Options say for whom a Terminal writes. Out is required.
type Options struct {
	Out     io.Writer
	Form    Form
	Width   func() int // columns of the screen; nil: 80
	Color   bool       // with colors
	Stamps  bool       // Records begin with their time
	Verbose bool       // Records also show functions, boxes and frames
	Version string     // of Dormouse, for the first block
	Keys    bool       // keys of the keyboard are taken
}

// Start is what the first block says.
type Start struct {
	File    string // name of the servers file
	Servers []Server
	Every   string   // the address of a server called NAME
	One     string   // the address of all servers, "" to leave it out
	Open    bool     // callers need no key, so people have no names
	Who     string   // who may call, such as "open to this machine only"
	Notes   []string // warnings, each one line
	Clients []string // lines that say how to connect clients
	Console string   // the command that opens the console, "" to leave it out
	// Cost returns what AWS would have billed since the start, in USD; nil: the status line
	// does not say. It is called at most once a second.
	Cost func() float64
}

// Server is a server of the servers file.
type Server struct {
	Name    string
	Address string // where clients call it, "" if it is not served
	Tools   string // such as "11 tools" or "never started"
	Why     string // why it is not served, "" if it is
	Place   string // place of the mistake in the file, may be empty
	Off     bool   // the file disables it
}
