package mcpwf

import (
	"encoding/json"
	"os"
	"testing"
)

func TestAnswersAreCheckedAsInPython(t *testing.T) {
	text, err := os.ReadFile("answers.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Form      any
		Response  any
		Complaint *string
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, each := range cases {
		form, wrong := readForm(each.Form)
		if wrong == "" {
			wrong = wrongWithResponse(form, each.Response)
		}
		if (wrong != "") != (each.Complaint != nil) {
			t.Errorf("%v of %v: said %q", each.Response, each.Form, wrong)
		}
	}
}
