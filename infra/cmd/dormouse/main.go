// Command dormouse hosts the servers of a servers file on this machine. It also shows
// the running processes and the sessions, and manages API keys.
package main

import "github.com/dormouse-mcp/dormouse/infra/dormouse"

func main() { dormouse.Program{}.Main() }
