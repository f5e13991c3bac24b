//go:build !aws

package boot

import "github.com/dormouse-mcp/dormouse/shared/catalog"

// readServers reads relative paths from the folder of the servers file.
func readServers(path string, getenv catalog.Getenv) (*catalog.Catalog, []catalog.Warning, error) {
	return catalog.LoadHere(path, getenv)
}
