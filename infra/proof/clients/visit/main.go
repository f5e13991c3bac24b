// Command visit goes through the pages of a sign-in as the user ada, with the password
// lovelace. Its arguments are the URL of the sign-in and the client's callback. It prints
// the callback URL to which the sign-in redirects, and does not open it.
//
//	visit http://127.0.0.1:8080/authorize?... http://127.0.0.1:5000/done
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/webuser"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	page, err := webuser.New(webuser.Ada()).Visit(ctx, os.Args[1], os.Args[2])
	if err == nil && page.Text != "" {
		err = fmt.Errorf("the sign-in ends at %s: %s", page.URL, page.Text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = fmt.Fprintln(os.Stdout, page.URL)
}
