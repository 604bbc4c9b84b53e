package converter

type EncodedValue interface {
	HasValue() bool
	Get(valuePtr interface{}) error
}
