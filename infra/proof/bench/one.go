package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// oneAddress measures servers behind /mcp: the first list, when no server has ever run; the
// processes and the memory after one call of each server; and calls at /mcp and at a
// server's own address.
func oneAddress(ctx context.Context, m *measurement) error {
	for _, n := range []int{50, 200} {
		row := *m
		row.peer.name = fmt.Sprintf("%d servers", n)
		row.say("begins")
		if err := atOneAddress(ctx, &row, n); err != nil {
			return err
		}
	}
	return nil
}

func atOneAddress(ctx context.Context, m *measurement, n int) error {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("echo%03d", i)
	}
	e, err := m.start(ctx, launch{names: names, own: true})
	if err != nil {
		return err
	}
	defer e.stop()
	root := strings.TrimSuffix(e.address, serverIn(e.address)+"/mcp")
	at := func(path string) (*httpClient, error) {
		c := newHTTPClient(root+path, true)
		_, err := timed(ctx, c.open)
		return c, err
	}
	all, err := at("mcp")
	if err != nil {
		return err
	}
	for _, list := range []string{"first list", "next list"} {
		var tools int
		took, err := timed(ctx, func(ctx context.Context) (err error) {
			tools, err = all.tools(ctx)
			return err
		})
		if err != nil {
			return err
		}
		m.add(list, "ms", ms(took))
		m.add("tools in the "+list, "", float64(tools))
	}
	for _, name := range names {
		if _, err := timed(ctx, func(ctx context.Context) error { return tool(ctx, all, name+"__"+name+"_7") }); err != nil {
			return err
		}
	}
	u, err := treeUsage(e.pid())
	if err != nil {
		return err
	}
	members, err := below(e.pid())
	if err != nil {
		return err
	}
	hosts := 0
	for _, p := range members {
		if p.pid != e.pid() && !hosted(p.command) {
			hosts++
		}
	}
	m.add("processes besides servers", "", float64(hosts))
	m.add("RSS of Dormouse", "MB", float64(u.Host)/1e6)

	first := names[0]
	for _, call := range []struct{ metric, path, tool string }{
		{"call at its own address", first + "/mcp", first + "_7"},
		{"call with a prefix", "mcp", first + "__" + first + "_7"},
		{"call with names=plain", "mcp?names=plain", first + "_7"},
		{"unknown name", "mcp", "nothing"},
		{"unknown name with names=plain", "mcp?names=plain", "nothing"},
	} {
		c, err := at(call.path)
		if err != nil {
			return err
		}
		once := func(ctx context.Context, c *httpClient) error {
			err := tool(ctx, c, call.tool)
			var refused failure
			if call.tool == "nothing" && errors.As(err, &refused) {
				return nil
			}
			return err
		}
		if _, err := timed(ctx, func(ctx context.Context) error { return once(ctx, c) }); err != nil { // this call starts the server's process
			return fmt.Errorf("%s: %w", call.metric, err)
		}
		l, err := press(ctx, e, []*httpClient{c}, m.scale(2*time.Second), once)
		if err != nil {
			return err
		}
		m.add(call.metric+" p50", "ms", quantile(l.took, 0.5))
	}
	return nil
}

// tool calls a tool that answers as echo does.
func tool(ctx context.Context, c *httpClient, name string) error {
	result, err := c.call(ctx, name, map[string]string{"message": "hello"})
	if err != nil {
		return err
	}
	return checkText(result, "Echo: hello")
}

// tools lists all tools and returns their number.
func (c *httpClient) tools(ctx context.Context) (int, error) {
	id := c.last.Add(1)
	body, err := request(id, "tools/list", nil)
	if err != nil {
		return 0, err
	}
	res, err := c.post(ctx, body) //nolint:bodyclose // read closes it
	if err != nil {
		return 0, err
	}
	result, err := read(res, id, nil)
	if err != nil {
		return 0, err
	}
	var list struct {
		Tools []struct{} `json:"tools"`
	}
	err = json.Unmarshal(result, &list)
	return len(list.Tools), err
}
