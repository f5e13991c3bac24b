package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

func (x *exchange) processes() (any, error) {
	status, err := x.status()
	if err != nil {
		return nil, err
	}
	for i := range status.Processes {
		if err := x.addSessionsOf(&status.Processes[i]); err != nil {
			return nil, err
		}
	}
	if !x.caller.reads() {
		for i := range status.Processes {
			p := &status.Processes[i]
			p.Detail = withoutOutput(p.Why())
		}
	}
	slices.SortStableFunc(status.Processes, func(a, b Process) int { return b.Since.Compare(a.Since) })
	return status, nil
}

// status returns those of the running boxes and processes that the caller may see.
func (x *exchange) status() (Status, error) {
	if x.h.Status == nil {
		return x.storedStatus()
	}
	s, err := x.h.Status(x.r.Context())
	if err != nil {
		return s, err
	}
	if x.caller.Tenant != "" {
		if s.Failed, err = x.ownFailures(s.Failed); err != nil {
			return s, err
		}
	}
	hidden := func(box string) bool { return !x.caller.may(storage.BoxID(box).Parts()) }
	s.Boxes = slices.DeleteFunc(s.Boxes, func(b Box) bool { return hidden(b.Box) })
	s.Processes = slices.DeleteFunc(s.Processes, func(p Process) bool { return hidden(p.Box) })
	for i := range s.Boxes {
		b := &s.Boxes[i]
		record, err := x.h.Store.Box(x.r.Context(), storage.BoxID(b.Box))
		switch {
		case err != nil:
			return s, err
		case record.Task == b.Task:
			b.State = cmp.Or(string(record.State), Asleep)
		}
	}
	return s, nil
}

// ownFailures returns the failed servers whose last start for the caller's tenant failed, and why. For
// an owner, it adds those that only other tenants have started.
func (x *exchange) ownFailures(all map[string]string) (map[string]string, error) {
	own := map[string]string{}
	for server := range all {
		if x.h.Starts == nil || !x.caller.may(x.caller.Tenant, server) {
			continue
		}
		last, err := x.h.Starts(x.r.Context(), StartQuery{Tenant: x.caller.Tenant, Server: server, Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(last) == 0 && x.caller.owns() {
			own[server] = "its last start, for another tenant, failed" // the reason may quote that tenant
		} else if len(last) > 0 && last[0].Failed {
			own[server] = last[0].Reason
		}
	}
	return own, nil
}

// storedStatus returns the boxes that the store says are up.
func (x *exchange) storedStatus() (Status, error) {
	s := Status{Boxes: []Box{}}
	due, err := x.h.Store.Due(x.r.Context())
	if err != nil {
		return s, err
	}
	for _, id := range due {
		if !x.caller.may(id.Parts()) {
			continue
		}
		b, err := x.h.Store.Box(x.r.Context(), id)
		if err != nil {
			return s, err
		}
		if b.State != storage.Asleep {
			s.Boxes = append(s.Boxes, Box{
				Box: string(id), Server: b.Server, State: string(b.State), Task: b.Task, Started: b.Changed.UTC(), Processes: []Member{},
			})
		}
	}
	return s, nil
}

// addSessionsOf sets the principal and the client of a process, and the time of its
// newest message.
func (x *exchange) addSessionsOf(p *Process) error {
	var last time.Time
	people, clients := map[string]bool{}, map[string]bool{}
	for _, id := range p.Sessions {
		s, _, err := x.h.Store.Load(x.r.Context(), storage.ID(id), "")
		if errors.Is(err, storage.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		people[s.Principal], clients[clientOf(s)] = true, true
		t, err := lastMessage(x, s)
		if err != nil {
			return err
		}
		if t.After(last) {
			last = t.UTC()
		}
	}
	if p.Since.After(last) && !last.IsZero() {
		last = p.Since.UTC() // the message that started the process counts, although it may not have ended
	}
	p.Principal, p.Client = oneOf(people, "people"), oneOf(clients, "clients")
	if !last.IsZero() {
		p.LastCall = &last
	}
	return nil
}

// withoutOutput returns the part of a reason that Dormouse wrote. Output of a program can only
// follow the first colon.
func withoutOutput(why string) string {
	own, _, _ := strings.Cut(why, ": ")
	return own
}

// oneOf returns the only name. For several names it returns their number and the noun, such as
// "3 people".
func oneOf(names map[string]bool, noun string) string {
	if len(names) > 1 {
		return fmt.Sprintf("%d %s", len(names), noun)
	}
	for name := range names {
		return name
	}
	return ""
}

const (
	noOutput missing = "the output of processes is not kept here; the output of a stack's boxes is in its log group in CloudWatch: aws logs tail --follow /dormouse/STACK/box"
	noBill   missing = "what was used is not counted here; a stack has it in its log groups in CloudWatch and on the bill of AWS"
)

func (x *exchange) logs() (any, error) {
	query := x.r.URL.Query()
	of := Outputs{Of: query.Get("of"), Follow: query.Get("follow") == "true"}
	if text := query.Get("lines"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, storage.Errorf(storage.Invalid, "lines is %q; use a number", text)
		}
		of.Lines = n
	}
	var err error
	if of.Since, err = spanOf(query, "since"); err != nil {
		return nil, err
	}
	write, readable := x.lines(), map[string]bool{}
	err = x.h.Output(x.r.Context(), of, func(o Output) error {
		name := o.Server + "/" + o.Process
		if _, known := readable[name]; !known {
			if readable[name], err = x.mayRead(o); err != nil {
				return err
			}
		}
		if !readable[name] {
			return nil
		}
		return write(o)
	})
	if err == nil {
		x.noLines()
	}
	return nil, err
}

// mayRead reports whether the caller may read the output of a process. A caller of one tenant may
// do so if a session of the process is known, and all known ones are of this tenant.
func (x *exchange) mayRead(o Output) (bool, error) {
	if !apikey.May(x.caller.Servers, o.Server) {
		return false, nil
	}
	if x.caller.Tenant == "" {
		return true, nil
	}
	known := false
	for _, id := range append([]string{o.Process}, o.Shared...) {
		s, _, err := x.h.Store.Load(x.r.Context(), storage.ID(id), "")
		switch {
		case errors.Is(err, storage.NotFound):
		case err != nil || s.Tenant != x.caller.Tenant:
			return false, err
		default:
			known = true
		}
	}
	return known, nil
}

// spanOf parses the parameter name of a query, a length of time such as 90m or 36h; "" is 0.
func spanOf(query url.Values, name string) (time.Duration, error) {
	text := query.Get(name)
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, storage.Errorf(storage.Invalid, "%s is %q; use a time such as 90m or 36h", name, text)
	}
	return d, nil
}

func (x *exchange) bill() (any, error) {
	since, err := x.since()
	if err != nil {
		return nil, err
	}
	bill, err := x.h.Bill(x.r.Context(), since)
	if err != nil {
		return nil, err
	}
	bill.Shares = slices.DeleteFunc(bill.Shares, func(s Share) bool { return !x.caller.may(s.Tenant, s.Server) })
	if by := x.r.URL.Query().Get("by"); by != "" {
		if bill.Shares, err = summed(bill.Shares, strings.Split(by, ","), !since.IsZero()); err != nil {
			return nil, err
		}
	}
	prices := meter.Published()
	bill.Prices = prices.Date
	for i := range bill.Shares {
		s := &bill.Shares[i]
		s.USD = prices.Cost(s.Units)
		bill.USD += s.USD
	}
	return bill, nil
}

// summed adds up the shares that agree in the fields that by names, and leaves other fields empty. The
// sums are in the order of their first shares. The argument byDay says that each share has a day, and
// those of calls a tool.
func summed(shares []Share, by []string, byDay bool) ([]Share, error) {
	sums, at := []Share{}, map[Share]int{}
	for _, name := range by {
		if !slices.Contains([]string{"server", "tenant", "principal", "tool", "day"}, name) || (name == "day" || name == "tool") && !byDay {
			return nil, storage.Errorf(storage.Invalid, "by is %q; use some of server, tenant, principal, and, with since, tool and day", strings.Join(by, ","))
		}
	}
	for _, s := range shares {
		of := Share{Server: s.Server, Tenant: s.Tenant, Principal: s.Principal, Tool: s.Tool, Day: s.Day}
		for name, field := range map[string]*string{"server": &of.Server, "tenant": &of.Tenant, "principal": &of.Principal, "tool": &of.Tool, "day": &of.Day} {
			if !slices.Contains(by, name) {
				*field = ""
			}
		}
		i, known := at[of]
		if !known {
			i = len(sums)
			at[of] = i
			sums = append(sums, of)
		}
		sums[i].Units = sums[i].Units.Plus(s.Units)
	}
	return sums, nil
}
