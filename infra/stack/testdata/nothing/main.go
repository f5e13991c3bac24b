// Command nothing ends at once.
package main

func main() {}
