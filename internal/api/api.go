// SPDX-License-Identifier: Apache-2.0

// Package api reads answers of the API server.
package api

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Body returns the body of an answer, or the error as the server gave it: Raw alone drops its reason and message.
func Body(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// Refusal is what the server said in err. ok is false when it gave no answer, and so may have done what it was asked.
func Refusal(err error) (status metav1.Status, ok bool) {
	reported := apierrors.APIStatus(nil)
	if !errors.As(err, &reported) {
		return metav1.Status{}, false
	}
	return reported.Status(), true
}
