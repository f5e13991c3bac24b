// Package image has the recipe of the container image in which boxes run MCP servers on AWS. Users
// with Docker build it from Dockerfile, and users without it with push.sh. The tests cover both.
package image
