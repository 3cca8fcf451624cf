// A Go program with generated stubs: writes, is cut off, resumes, branches, reads across the branch points.
//
//	client write ADDRESS                        writes, and prints the ids as JSON
//	client read ADDRESS TRAJECTORY BRANCH LEAF  reads what any client wrote, and compares it with the samples
//	client append ADDRESS CA UNARY STREAMED     appends until standard input ends (append.go)
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "anabranch.test/client/gen/anabranch/v1"
)

const beyondDouble = 1<<53 + 1

type story struct {
	context.Context
	address      string
	trajectories pb.TrajectoryServiceClient
	states       pb.StateServiceClient
}

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(command, address string, ids []string) error {
	if command == "append" {
		return appendUntilEnd(address, ids[0], ids[1], ids[2])
	}
	return attempt(func() { tell(command, address, ids) })
}

// attempt calls a function, and returns any failed expectation as an error.
func attempt(work func()) (err error) {
	defer func() {
		switch broken := recover().(type) {
		case nil:
		case error:
			err = broken
		default:
			panic(broken)
		}
	}()
	work()
	return nil
}

func tell(command, address string, ids []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	connection := dial(address)
	defer connection.Close()
	s := story{ctx, address, pb.NewTrajectoryServiceClient(connection), pb.NewStateServiceClient(connection)}
	if command == "write" {
		trajectory := s.write()
		branch, leaf := s.branchTwice(trajectory)
		fmt.Printf("{\"trajectoryId\":%q,\"branchId\":%q,\"leafId\":%q}\n", trajectory, branch, leaf)
		return
	}
	s.read(ids[0], ids[1], ids[2])
}

func dial(address string) *grpc.ClientConn {
	return must(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())))
}

func (s story) write() string {
	equal(s.putState(putState), digestOf(putState))
	steps := sampleSteps()
	request := &pb.CreateTrajectoryRequest{
		RequestId:    fmt.Sprintf("go %d", time.Now().UnixNano()),
		Name:         sampleName,
		TaskId:       sampleTask,
		Labels:       sampleLabels,
		MetadataJson: sampleMetadata,
		Root:         steps[0],
	}
	id := must(s.trajectories.CreateTrajectory(s, request)).Trajectory.Id
	equal(must(s.trajectories.CreateTrajectory(s, request)).Trajectory.Id, id)

	doomed := dial(s.address)
	first, opened := s.open(pb.NewTrajectoryServiceClient(doomed), &pb.AppendOpen{TrajectoryId: id, WriterId: "go one"})
	equal(opened.Epoch, 1)
	equal(opened.NextStepNumber, 1)
	equal(appendSteps(first, steps[1:3]).NextStepNumber, 3)
	for _, step := range steps[3:5] {
		check(first.Send(&pb.AppendStepsRequest{Steps: []*pb.Step{step}}))
	}
	check(doomed.Close()) // the connection, with steps unacked
	s.resume(id, steps[3:])
	s.refusals(id)
	return id
}

func (s story) putState(data []byte) string {
	call := must(s.states.PutState(s))
	for offset := 0; offset < len(data); offset += 256 * 1024 {
		chunk := data[offset:min(offset+256*1024, len(data))]
		check(call.Send(&pb.PutStateRequest{Chunk: chunk}))
	}
	return must(call.CloseAndRecv()).State.Digest
}

type appendCall = grpc.BidiStreamingClient[pb.AppendStepsRequest, pb.AppendStepsResponse]

func (s story) open(trajectories pb.TrajectoryServiceClient, open *pb.AppendOpen) (appendCall, *pb.AppendOpened) {
	call := must(trajectories.AppendSteps(s))
	check(call.Send(&pb.AppendStepsRequest{Open: open}))
	return call, must(call.Recv()).Opened
}

func appendSteps(call appendCall, steps []*pb.Step) *pb.AppendAck {
	check(call.Send(&pb.AppendStepsRequest{Steps: steps}))
	for {
		if ack := must(call.Recv()).Ack; ack.NextStepNumber > steps[len(steps)-1].StepNumber {
			return ack
		}
	}
}

// resume acts like a restarted process that still has its steps: it takes over and replays from the first unacked one.
func (s story) resume(id string, unacked []*pb.Step) {
	found := must(s.trajectories.GetTrajectory(s, &pb.GetTrajectoryRequest{TrajectoryId: id})).Trajectory
	equal(found.WriterId, "go one")
	call := must(s.trajectories.AppendSteps(s))
	check(call.Send(&pb.AppendStepsRequest{Open: &pb.AppendOpen{TrajectoryId: id, WriterId: "go two"}}))
	_, err := call.Recv()
	holder := refused(err, codes.FailedPrecondition, "WRITER_FENCED")
	equal(holder["writer_id"], "go one")
	equal(holder["writer_epoch"], "1")

	call, opened := s.open(s.trajectories, &pb.AppendOpen{
		TrajectoryId:  id,
		Uid:           found.Uid,
		WriterId:      "go two",
		TakeOverEpoch: proto.Int64(found.WriterEpoch),
	})
	equal(opened.Epoch, 2)
	ack := appendSteps(call, unacked)
	equal(ack.NextStepNumber, 7)
	equal(ack.DuplicateSteps, opened.NextStepNumber-3)
	check(call.CloseSend())
	if answer, err := call.Recv(); !errors.Is(err, io.EOF) {
		panic(fmt.Errorf("expected the end of the stream, but got %v, %w", answer, err))
	}
}

func (s story) refusals(id string) {
	step := &pb.Step{StepNumber: 7}
	_, err := s.trajectories.AppendStep(s, &pb.AppendStepRequest{TrajectoryId: id, WriterEpoch: proto.Int64(1), Step: step})
	equal(refused(err, codes.FailedPrecondition, "WRITER_FENCED")["writer_epoch"], "2")

	call, _ := s.open(s.trajectories, &pb.AppendOpen{TrajectoryId: id, WriterId: "go two"})
	check(call.Send(&pb.AppendStepsRequest{Steps: []*pb.Step{{StepNumber: beyondDouble}}}))
	_, err = call.Recv()
	gap := refused(err, codes.OutOfRange, "STEP_GAP")
	equal(gap["step_number"], fmt.Sprint(beyondDouble))
	equal(gap["next_step_number"], "7")

	_, err = s.trajectories.GetStep(s, &pb.GetStepRequest{TrajectoryId: id, StepNumber: proto.Int64(beyondDouble)})
	equal(refused(err, codes.NotFound, "STEP_NOT_FOUND")["step_number"], fmt.Sprint(beyondDouble))
}

func (s story) branchTwice(id string) (string, string) {
	branch := must(s.trajectories.BranchTrajectory(s, &pb.BranchTrajectoryRequest{
		TrajectoryId: id, StepNumber: proto.Int64(3), Name: "branch",
	})).Trajectory
	equal(branch.ParentId, id)
	equal(branch.GetBranchPoint(), 3)
	equal(branch.NextStepNumber, 4)
	s.appendUnary(branch.Id, branchSteps())
	must(s.trajectories.SealTrajectory(s, &pb.SealTrajectoryRequest{
		TrajectoryId: branch.Id, Seal: &pb.Seal{Status: pb.Status_STATUS_COMPLETED, Message: "done"},
	}))
	leaf := must(s.trajectories.BranchTrajectory(s, &pb.BranchTrajectoryRequest{
		TrajectoryId: branch.Id, StepNumber: proto.Int64(4), Name: "leaf",
	})).Trajectory
	s.appendUnary(leaf.Id, leafSteps())
	return branch.Id, leaf.Id
}

func (s story) appendUnary(id string, steps []*pb.Step) {
	for _, step := range steps {
		must(s.trajectories.AppendStep(s, &pb.AppendStepRequest{TrajectoryId: id, Step: step}))
	}
}

type owned struct {
	owner string
	step  *pb.Step
}

func ownedBy(owner string, steps []*pb.Step) (result []owned) {
	for _, step := range steps {
		result = append(result, owned{owner, asRead(step)})
	}
	return result
}

func (s story) read(trajectory, branch, leaf string) {
	own := ownedBy(trajectory, sampleSteps())
	onBranch := ownedBy(branch, branchSteps())
	s.expectSteps(trajectory, own)
	s.expectSteps(branch, append(own[:4:4], onBranch...))
	s.expectSteps(leaf, append(append(own[:4:4], onBranch[0]), ownedBy(leaf, leafSteps())...))
	s.expectStates(trajectory, leaf)
	found := must(s.trajectories.GetTrajectory(s, &pb.GetTrajectoryRequest{TrajectoryId: trajectory})).Trajectory
	equal(found.Name, sampleName)
	equal(found.TaskId, sampleTask)
	equal(found.MetadataJson, sampleMetadata)
	equal(maps.Equal(found.Labels, sampleLabels), true)
	equal(found.BranchPoint == nil, true)
	equal(found.Status, pb.Status_STATUS_RUNNING)
}

func (s story) expectSteps(id string, expected []owned) {
	call := must(s.trajectories.ReadSteps(s, &pb.ReadStepsRequest{TrajectoryId: id}))
	read := []owned{}
	each(call, func(message *pb.ReadStepsResponse) {
		for _, step := range message.Steps {
			read = append(read, owned{message.TrajectoryId, withoutServerFields(step)})
		}
	})
	equal(len(read), len(expected))
	for i, got := range read {
		equal(got.owner, expected[i].owner)
		if !proto.Equal(got.step, expected[i].step) {
			panic(fmt.Errorf("expected %.2000v\nbut got  %.2000v", expected[i].step, got.step))
		}
	}
}

func (s story) expectStates(trajectory, leaf string) {
	checkpoint := must(s.trajectories.GetCheckpoint(s, &pb.GetCheckpointRequest{
		TrajectoryId: trajectory, AtOrBefore: proto.Int64(5),
	})).Step
	states := checkpoint.States
	equal(len(states), 3)
	equal(states[0].Data != nil && len(states[0].Data) == 0, true)
	equal(bytes.Equal(states[1].Data, inlineState), true)
	equal(states[2].Data == nil, true)
	equal(states[2].Size, int64(len(putState)))

	reference := pb.StateReference{TrajectoryId: trajectory, StepNumber: &checkpoint.StepNumber, Name: "put"}
	for _, request := range []*pb.GetStateRequest{{Reference: &reference}, {Digest: states[2].Digest}} {
		whole := must(s.states.GetState(s, request))
		data := []byte{}
		each(whole, func(message *pb.GetStateResponse) { data = append(data, message.Chunk...) })
		equal(bytes.Equal(data, putState), true)
	}

	sequence := must(s.states.ReadStates(s, &pb.ReadStatesRequest{Range: &pb.StateRange{TrajectoryId: leaf}}))
	found := ""
	each(sequence, func(message *pb.ReadStatesResponse) {
		for _, piece := range message.Pieces {
			found += fmt.Sprintf("%d %s\n", piece.StepNumber, piece.Data)
		}
	})
	equal(found, "1 état 1\n4 branch 4\n5 leaf 5\n")
}

func each[T any](call grpc.ServerStreamingClient[T], take func(*T)) {
	for {
		message, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		check(err)
		take(message)
	}
}

// refused expects an error with that code and reason, and returns its structured details.
func refused(err error, code codes.Code, reason string) map[string]string {
	equal(status.Code(err), code)
	infos := []*errdetails.ErrorInfo{}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			infos = append(infos, info)
		}
	}
	equal(len(infos), 1)
	equal(infos[0].Domain, "anabranch.v1")
	equal(infos[0].Reason, reason)
	return infos[0].Metadata
}

func equal[T comparable](actual, expected T) {
	if actual != expected {
		panic(fmt.Errorf("expected %v, but got %v", expected, actual))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}
