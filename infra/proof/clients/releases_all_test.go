//go:build clients && matrix

package clients

import "testing"

func TestReleases(t *testing.T) { runReleases(t, releases()) }
