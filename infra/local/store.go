package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// Prefixes of the names of stores.
const (
	sqlite   = "sqlite:"
	dynamodb = "dynamodb:"
)

// StoreName returns the name of the store for these values of Store and Data in a [Config]. A path
// in the name is absolute.
func StoreName(store, data string) (string, error) {
	path, ok := strings.CutPrefix(store, sqlite)
	switch {
	case store == "":
		path = filepath.Join(data, StoreFile)
	case !ok:
		return store, nil
	case path == "":
		return "", errors.New("the store sqlite: has no path; want sqlite:PATH")
	}
	path, err := filepath.Abs(path)
	return sqlite + path, err
}

// SQLite returns the path of the store's file, for the fields Store and Data of a [Config]. ok is
// false if the store is not a file.
func SQLite(store, data string) (path string, ok bool, err error) {
	name, err := StoreName(store, data)
	if err != nil {
		return "", false, err
	}
	path, ok = strings.CutPrefix(name, sqlite)
	return path, ok, nil
}

// LookAtStore returns an error if Run could not use the store of this name. It reads the whole file
// and changes nothing. The result made is false if the file does not exist yet. For a store on
// DynamoDB, LookAtStore checks nothing.
func LookAtStore(ctx context.Context, name string) (made bool, err error) {
	path, ok := strings.CutPrefix(name, sqlite)
	if !ok {
		return true, nil
	}
	err = sqlitestore.Check(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return true, err
}

// OpenStore opens a store by its name. For a DynamoDB table it reads the credentials and the region
// with getenv. The options are for an SQLite file; limits.EventAge replaces their Age.
func OpenStore(name string, getenv func(string) string, limits sessions.Limits, options sqlitestore.Options) (storage.Store, error) {
	if path, ok := strings.CutPrefix(name, sqlite); ok {
		options.Age = limits.EventAge
		s, err := sqlitestore.Open(path, options)
		if err != nil {
			return nil, err // a nil *Store in the interface would not equal nil
		}
		return s, nil
	}
	where, ok := strings.CutPrefix(name, dynamodb)
	if !ok {
		return nil, fmt.Errorf("the store is %q; want sqlite:PATH or dynamodb:%s", name, dynamostore.LocationForm)
	}
	location, keys, err := Table(where, getenv)
	if err != nil {
		return nil, err
	}
	return dynamostore.New(location.Client(keys, nil), location.Table, dynamostore.Options{Age: limits.EventAge, Life: limits.Life}), nil
}

// Table returns the location of a DynamoDB table, and the credentials for it. The argument where is
// the name of the store without "dynamodb:".
func Table(where string, getenv func(string) string) (dynamostore.Location, dynamostore.Keys, error) {
	location, err := dynamostore.ParseLocation(where, cmp.Or(getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION")))
	location.Endpoint = cmp.Or(location.Endpoint, getenv("AWS_ENDPOINT_URL")) // as the AWS SDKs do
	return location, dynamostore.Keys{ID: getenv("AWS_ACCESS_KEY_ID"), Secret: getenv("AWS_SECRET_ACCESS_KEY"), Token: getenv("AWS_SESSION_TOKEN")}, err
}

// isNew reports whether a store's file does not exist yet, so that no earlier run has left
// anything in it.
func isNew(store string) bool {
	path, ok := strings.CutPrefix(store, sqlite)
	if !ok {
		return false
	}
	_, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist)
}
