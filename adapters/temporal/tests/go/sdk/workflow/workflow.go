package workflow

import (
	"time"

	"go.temporal.io/sdk/converter"
)

type Context interface {
	Deadline() (deadline time.Time, ok bool)
	Err() error
	Value(key interface{}) interface{}
}

type ReceiveChannel interface {
	Receive(ctx Context, valuePtr interface{}) (more bool)
}

type Info struct {
	OriginalRunID string
}

type Logger interface {
	Warn(msg string, keyvals ...interface{})
}

type UpdateHandlerOptions struct {
	Validator interface{}
}

func Await(ctx Context, condition func() bool) error { panic("declared only") }

func GetInfo(ctx Context) *Info { panic("declared only") }

func GetLogger(ctx Context) Logger { panic("declared only") }

func GetSignalChannel(ctx Context, signalName string) ReceiveChannel { panic("declared only") }

func Go(ctx Context, f func(ctx Context)) { panic("declared only") }

func SetUpdateHandlerWithOptions(ctx Context, updateName string, handler interface{}, opts UpdateHandlerOptions) error {
	panic("declared only")
}

func SideEffect(ctx Context, f func(ctx Context) interface{}) converter.EncodedValue {
	panic("declared only")
}

func UpsertMemo(ctx Context, memo map[string]interface{}) error { panic("declared only") }
