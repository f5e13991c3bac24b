//go:build !linux

package local

import "github.com/dormouse-mcp/dormouse/shared/operate/api"

// systemVitals returns nothing, because this system is not supported.
func systemVitals(string) api.Vitals { return api.Vitals{} }
