// Package mcpwf asks a person, and tells how far the work is, from a Temporal workflow in Go.
//
//	func Ship(ctx workflow.Context, orderID string) (string, error) {
//		var person mcpwf.Person // one per workflow run
//		if err := person.Progress(ctx, "checking stock", 1, 3); err != nil {
//			return "", err
//		}
//		answer, err := person.Elicit(ctx, "Approve this order?", map[string]any{
//			"type":       "object",
//			"properties": map[string]any{"ok": map[string]any{"type": "boolean"}},
//			"required":   []string{"ok"},
//		})
//		if err != nil {
//			return "", err
//		}
//		if !answer.Accepted() || answer.Content["ok"] != true {
//			return "not shipped", nil
//		}
//		...
//
// A copy of yours to keep in your module: it needs go.temporal.io/sdk and nothing else.
// From mcp-workflows, Apache-2.0. Contract 1: docs/engines/temporal-contract.md
package mcpwf

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"sort"
	"unicode/utf8"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// Answer is what the person did with the question (MCP ElicitResult).
type Answer struct {
	Action  string         `json:"action"`  // accept, decline or cancel
	Content map[string]any `json:"content"` // by the schema; empty if not accepted
}

// Accepted tells whether the person filled in the form and sent it.
func (a Answer) Accepted() bool { return a.Action == "accept" }

// Person is who is behind the task, as one workflow run knows them: its open questions and the answers on their way.
// The zero value is ready; use one, or pointers to one, for the whole run.
type Person struct {
	open      map[string]question
	answers   map[string]Answer
	answered  map[string]bool
	told      *status
	listening bool
}

type question struct {
	Method string `json:"method"`
	Params params `json:"params"`
}

type params struct {
	Mode            string         `json:"mode"`
	Message         string         `json:"message"`
	RequestedSchema map[string]any `json:"requestedSchema"`
}

type status struct {
	Message  string   `json:"message"`
	Progress *float64 `json:"progress"`
	Total    *float64 `json:"total"`
}

type delivery struct {
	Key      string `json:"key"`
	Response any    `json:"response"`
}

// Elicit asks the person and waits, as long as it takes, for the answer.
//
// The schema is a flat JSON Schema object of primitive properties (MCP elicitation, form mode): a map, a struct or
// json.RawMessage that marshals to one. Cancelling ctx takes the question back and returns a CanceledError. A schema
// that no client can show is an ApplicationError of type McpBadQuestion: return it, and the workflow fails with it.
func (p *Person) Elicit(ctx workflow.Context, message string, schema any) (Answer, error) {
	form, wrong := readForm(schema)
	if wrong != "" {
		return Answer{}, temporal.NewNonRetryableApplicationError(wrong, "McpBadQuestion", nil)
	}
	if err := p.listen(ctx); err != nil {
		return Answer{}, err
	}
	key, err := newKey(ctx)
	if err != nil {
		return Answer{}, err
	}
	p.open[key] = question{"elicitation/create", params{"form", message, form}}
	if err := p.publish(ctx); err != nil {
		return Answer{}, err
	}
	if err := workflow.Await(ctx, func() bool { return p.answered[key] }); err != nil {
		return Answer{}, p.takeBack(ctx, key, err)
	}
	answer := p.answers[key]
	delete(p.answers, key)
	return answer, nil
}

// Progress says what the workflow is doing, and that it did done[0] of done[1], in a unit of your own; both are
// optional. Each new text or number is one event in the history: report steps, not bytes.
func (p *Person) Progress(ctx workflow.Context, message string, done ...float64) error {
	now := status{Message: message}
	if len(done) > 0 {
		now.Progress = &done[0]
	}
	if len(done) > 1 {
		now.Total = &done[1]
	}
	if p.told != nil && reflect.DeepEqual(*p.told, now) {
		return nil
	}
	p.told = &now
	return workflow.UpsertMemo(ctx, map[string]any{"mcp.status": now})
}

// listen sets the handlers, with the first question: no author has to.
func (p *Person) listen(ctx workflow.Context) error {
	if p.listening {
		return nil
	}
	p.listening = true
	p.open, p.answers, p.answered = map[string]question{}, map[string]Answer{}, map[string]bool{}
	workflow.Go(ctx, func(ctx workflow.Context) {
		signals := workflow.GetSignalChannel(ctx, "mcp_answer_signal")
		for {
			var got delivery
			if !signals.Receive(ctx, &got) {
				return
			}
			err := p.refuse(got.Key, got.Response)
			if err == nil {
				err = p.take(ctx, got.Key, got.Response)
			}
			if err != nil {
				workflow.GetLogger(ctx).Warn("ignored an answer", "reason", err.Error())
			}
		}
	})
	return workflow.SetUpdateHandlerWithOptions(
		ctx,
		"mcp_answer",
		func(ctx workflow.Context, key string, response any) error { return p.take(ctx, key, response) },
		workflow.UpdateHandlerOptions{
			Validator: func(ctx workflow.Context, key string, response any) error { return p.refuse(key, response) },
		},
	)
}

// refuse says what is wrong with an answer; one delivered twice is fine, and ignored by take.
func (p *Person) refuse(key string, response any) error {
	if p.answered[key] {
		return nil
	}
	asked, here := p.open[key]
	if !here {
		text := fmt.Sprintf("no open question '%s'", key)
		return temporal.NewNonRetryableApplicationError(text, "McpUnknownInput", nil)
	}
	if wrong := wrongWithResponse(asked.Params.RequestedSchema, response); wrong != "" {
		return temporal.NewNonRetryableApplicationError(wrong, "McpBadInput", nil)
	}
	return nil
}

// take keeps an answer that was not refused. It publishes in the same workflow task: when the update returns, the
// memo is up to date.
func (p *Person) take(ctx workflow.Context, key string, response any) error {
	if p.answered[key] {
		return nil
	}
	fields := response.(map[string]any)
	answer := Answer{Action: fields["action"].(string), Content: map[string]any{}}
	if content, filled := fields["content"].(map[string]any); filled && answer.Accepted() {
		answer.Content = content
	}
	p.answers[key], p.answered[key] = answer, true
	delete(p.open, key)
	return p.publish(ctx)
}

// takeBack withdraws a question whose wait ended with this error, which it returns.
func (p *Person) takeBack(ctx workflow.Context, key string, cancelled error) error {
	if _, here := p.open[key]; here {
		delete(p.open, key)
		if err := p.publish(ctx); err != nil {
			return err
		}
	}
	return cancelled
}

// publish writes the open questions, marked with the run that asks them: a next run inherits the memo.
func (p *Person) publish(ctx workflow.Context) error {
	var asked any // nil deletes it
	if len(p.open) > 0 {
		asked = map[string]any{"run": workflow.GetInfo(ctx).OriginalRunID, "requests": p.open}
	}
	return workflow.UpsertMemo(ctx, map[string]any{"mcp.input": asked})
}

// newKey makes a key that is the same on replay, and new after a reset to before the question: it is in the history.
func newKey(ctx workflow.Context) (string, error) {
	var key string
	err := workflow.SideEffect(ctx, func(workflow.Context) any {
		random := make([]byte, 16)
		if _, err := rand.Read(random); err != nil {
			panic(err) // fails the workflow task, which is tried again
		}
		return hex.EncodeToString(random)
	}).Get(&key)
	return key, err
}

var actions = map[string]bool{"accept": true, "decline": true, "cancel": true}

var types = map[string]func(value any) bool{
	"string":  func(value any) bool { _, is := value.(string); return is },
	"number":  func(value any) bool { _, is := value.(float64); return is },
	"integer": func(value any) bool { number, is := value.(float64); return is && number == math.Trunc(number) },
	"boolean": func(value any) bool { _, is := value.(bool); return is },
	"array":   func(value any) bool { _, is := value.([]any); return is },
}

// limits by word: how large a value is, whether the limit is the least or the most, and what is said beyond it.
var limits = []struct {
	word  string
	size  func(value any) (size float64, limited bool) // JSON Schema: it says nothing of values of another type
	least bool
	text  string
}{
	{"minimum", magnitude, true, "must be at least"},
	{"maximum", magnitude, false, "must be at most"},
	{"minLength", characters, true, "is shorter than"},
	{"maxLength", characters, false, "is longer than"},
	{"minItems", items, true, "has fewer items than"},
	{"maxItems", items, false, "has more items than"},
}

func magnitude(value any) (float64, bool) {
	number, is := value.(float64)
	return number, is
}

func characters(value any) (float64, bool) {
	text, is := value.(string)
	return float64(utf8.RuneCountInString(text)), is
}

func items(value any) (float64, bool) {
	list, is := value.([]any)
	return float64(len(list)), is
}

// readForm gives the schema as JSON has it, or what is wrong with it.
func readForm(schema any) (form map[string]any, wrong string) {
	text, err := json.Marshal(schema)
	if err != nil || json.Unmarshal(text, &form) != nil || form["type"] != "object" {
		return nil, `a question needs the schema of an object: {"type": "object", "properties": {...}}`
	}
	properties, _ := form["properties"].(map[string]any)
	for _, name := range sorted(properties) {
		field, _ := properties[name].(map[string]any)
		kind, _ := field["type"].(string)
		if types[kind] == nil {
			return nil, fmt.Sprintf("property '%s' of a question must have one type of %v", name, sorted(types))
		}
	}
	return form, ""
}

func wrongWithResponse(form map[string]any, response any) string {
	answer, is := response.(map[string]any)
	if !is {
		return "an answer is {action, content}"
	}
	action, _ := answer["action"].(string)
	if !actions[action] {
		return "action must be accept, decline or cancel"
	}
	if action != "accept" {
		return ""
	}
	if answer["content"] == nil {
		return wrongWithContent(form, map[string]any{})
	}
	content, is := answer["content"].(map[string]any)
	if !is {
		return "content must be an object"
	}
	return wrongWithContent(form, content)
}

func wrongWithContent(form, content map[string]any) string {
	required, _ := form["required"].([]any)
	for _, each := range required {
		name, _ := each.(string)
		if _, here := content[name]; !here {
			return fmt.Sprintf("property '%s' is missing", name)
		}
	}
	properties, _ := form["properties"].(map[string]any)
	for _, name := range sorted(properties) {
		field, _ := properties[name].(map[string]any)
		value, here := content[name]
		if !here {
			continue
		}
		if wrong := wrongWithValue(field, value); wrong != "" {
			return fmt.Sprintf("property '%s' %s", name, wrong)
		}
	}
	return ""
}

func wrongWithValue(field map[string]any, value any) string {
	kind, _ := field["type"].(string)
	if !types[kind](value) {
		return "must be of type " + kind
	}
	if allowed, limited := field["enum"].([]any); limited && !isIn(allowed, value) {
		return fmt.Sprintf("must be one of %v", allowed)
	}
	for _, each := range limits {
		limit, given := field[each.word].(float64)
		size, limited := each.size(value)
		if given && limited && (each.least && size < limit || !each.least && size > limit) {
			return fmt.Sprintf("%s %v", each.text, limit)
		}
	}
	return ""
}

func isIn(allowed []any, value any) bool {
	for _, each := range allowed {
		if reflect.DeepEqual(each, value) {
			return true
		}
	}
	return false
}

func sorted[Value any](table map[string]Value) []string {
	names := make([]string, 0, len(table))
	for name := range table {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}
