//go:build aws

package boot

import "github.com/dormouse-mcp/dormouse/shared/catalog"

// readServers leaves relative paths to the image of the box.
func readServers(path string, getenv catalog.Getenv) (*catalog.Catalog, []catalog.Warning, error) {
	return catalog.Load(path, getenv)
}
