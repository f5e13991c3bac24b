//go:build !linux

package local

import "github.com/dormouse-mcp/dormouse/shared/operate/api"

// systemVitals knows nothing here.
func systemVitals(string) api.Vitals { return api.Vitals{} }
