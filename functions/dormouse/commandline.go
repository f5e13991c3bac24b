//go:build !aws

package dormouse

import (
	"github.com/dormouse-mcp/dormouse/infra/dormouse"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

func commandLine(servers native.Servers) { dormouse.Program{Native: servers}.Main() }
