package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	pb "anabranch.test/client/gen/anabranch/v1"
)

const pause = 40 * time.Millisecond

// appendUntilEnd appends to two trajectories until standard input ends: to one by unary calls, to the other over
// streams. Prints "unary N" and "stream N" when the steps below N are acked, and "drained" when a stream ends because
// its server stops. Any other end of a call is an error.
func appendUntilEnd(address, ca, unary, streamed string) error {
	trusted, err := credentials.NewClientTLSFromFile(ca, "")
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(trusted))
	if err != nil {
		return err
	}
	defer connection.Close()
	trajectories := pb.NewTrajectoryServiceClient(connection)
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	results := make(chan error, 2)
	go func() { results <- attempt(func() { appendByCalls(trajectories, unary, ended) }) }()
	go func() { results <- attempt(func() { appendByStreams(trajectories, streamed, ended) }) }()
	for range 2 {
		if err := <-results; err != nil {
			return err
		}
	}
	return nil
}

func numbered(number int64) *pb.Step {
	return &pb.Step{StepNumber: number, InfoJson: fmt.Sprint(number)}
}

func isOver(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	case <-time.After(pause):
		return false
	}
}

func appendByCalls(trajectories pb.TrajectoryServiceClient, id string, ended <-chan struct{}) {
	for next := int64(0); !isOver(ended); next++ {
		must(trajectories.AppendStep(context.Background(), &pb.AppendStepRequest{TrajectoryId: id, Step: numbered(next)}))
		fmt.Printf("unary %d\n", next+1)
	}
}

func appendByStreams(trajectories pb.TrajectoryServiceClient, id string, ended <-chan struct{}) {
	next, epoch := int64(0), int64(0)
	for !isOver(ended) {
		err := appendOverStream(trajectories, id, &next, &epoch, ended)
		if err == nil {
			return
		}
		refused(err, codes.Unavailable, "SERVER_DRAINING")
		fmt.Println("drained")
	}
}

// appendOverStream returns nil at the end of standard input, and the error that ended the stream otherwise.
func appendOverStream(
	trajectories pb.TrajectoryServiceClient, id string, next, epoch *int64, ended <-chan struct{},
) error {
	call, err := trajectories.AppendSteps(context.Background())
	if err != nil {
		return err
	}
	open := &pb.AppendOpen{TrajectoryId: id, WriterId: "go"}
	if *epoch > 0 {
		open.TakeOverEpoch = proto.Int64(*epoch)
	}
	if err := call.Send(&pb.AppendStepsRequest{Open: open}); err != nil {
		_, err = call.Recv()
		return err
	}
	answer, err := call.Recv()
	if err != nil {
		return err
	}
	*epoch = answer.Opened.Epoch
	for !isOver(ended) {
		if err := call.Send(&pb.AppendStepsRequest{Steps: []*pb.Step{numbered(*next)}}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		answer, err := call.Recv()
		if err != nil {
			return err
		}
		equal(answer.Ack.NextStepNumber, *next+1)
		*next++
		fmt.Printf("stream %d\n", *next)
	}
	check(call.CloseSend())
	if _, err = call.Recv(); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
