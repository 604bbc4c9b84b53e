package example

import (
	"mcpwf"

	"go.temporal.io/sdk/workflow"
)

func ShipOrder(ctx workflow.Context, orderID string) (bool, error) {
	var person mcpwf.Person // one per workflow run
	if err := person.Progress(ctx, "checking stock", 1, 2); err != nil {
		return false, err
	}
	answer, err := person.Elicit(ctx, "Ship "+orderID+"?", map[string]any{
		"type":       "object",
		"properties": map[string]any{"ok": map[string]any{"type": "boolean"}},
		"required":   []string{"ok"},
	})
	if err != nil {
		return false, err
	}
	return answer.Accepted() && answer.Content["ok"] == true, nil
}
