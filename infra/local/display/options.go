package display

import "io"

// Options say for whom a Terminal writes. Out is required.
type Options struct {
	Out io.Writer
	// Screen says that Out is a terminal. The lines are for people, and the last ones are rewritten.
	// Without Screen, each event is one line with names and values.
	Screen  bool
	Width   func() int // columns of the screen; nil stands for 80
	Color   bool
	Stamps  bool   // lines with names and values begin with the time
	Verbose bool   // also print events of functions, boxes and their messages
	Version string // version of dormouse, for the first block
	Keys    bool   // the user can press keys, so the first block names them
}

// Start has what the first block on the terminal shows.
type Start struct {
	File    string // name of the servers file
	Servers []Server
	One     string   // the one address of all servers; "" leaves it out
	Open    bool     // callers need no key, so principals have no names
	Who     string   // who may call, such as "open to this machine only"
	Notes   []string // warnings, each one line
	// Preparing are the servers that have never started, and that are installed now and started once.
	Preparing []string
	Clients   []string // lines that say how to connect clients
	Console   string   // the command that opens the console; "" leaves it out
	// Cost returns what AWS would have billed since the start, in USD. If it is nil, the status
	// line shows no cost. It is called at most once a second.
	Cost func() float64
}

// Server is a server of the servers file.
type Server struct {
	Name    string
	Address string // URL at which clients call it; "" if it is not served
	Tools   string // for example "11 tools" or "never started"
	Why     string // why it is not served; "" if it is
	Place   string // where in the servers file the mistake is; may be ""
	Off     bool   // the file disables it
}
