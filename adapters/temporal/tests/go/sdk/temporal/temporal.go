package temporal

func NewNonRetryableApplicationError(message, errType string, cause error, details ...interface{}) error {
	panic("declared only")
}
