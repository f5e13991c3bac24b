// Package image has the recipe of the image of the boxes, for users with Docker
// (Dockerfile) and without it (push.sh), and the tests of both.
package image
