import { type Client, createClient, type Transport } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport } from '@connectrpc/connect-node';
import { createGrpcWebTransport } from '@connectrpc/connect-web';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { createGrpcJsTransport } from './grpc-js-transport.ts';
import type { WireClient } from './story.ts';

/**
 * A protocol and codec with which to call the server. The protocol determines which streams it supports; all support
 * streams of answers.
 */
export interface Wire {
  readonly name: string;
  readonly clientStreams: boolean;
  readonly bidiStreams: boolean;
  readonly codec: 'protobuf-es' | 'protobufjs' | 'JSON';
  transport(url: string): Transport;
}

export const GRPC_JS: Wire = {
  name: '@grpc/grpc-js',
  clientStreams: true,
  bidiStreams: true,
  codec: 'protobufjs',
  transport: (url) => createGrpcJsTransport(new URL(url).host),
};

export const WIRES: readonly Wire[] = [
  {
    name: 'Connect over HTTP/1.1',
    clientStreams: true,
    bidiStreams: false,
    codec: 'protobuf-es',
    transport: (baseUrl) => createConnectTransport({ baseUrl, httpVersion: '1.1', useBinaryFormat: true }),
  },
  {
    name: 'Connect JSON over HTTP/1.1',
    clientStreams: true,
    bidiStreams: false,
    codec: 'JSON',
    transport: (baseUrl) => createConnectTransport({ baseUrl, httpVersion: '1.1', useBinaryFormat: false }),
  },
  {
    name: 'Connect GET over HTTP/1.1',
    clientStreams: true,
    bidiStreams: false,
    codec: 'protobuf-es',
    transport: (baseUrl) =>
      createConnectTransport({ baseUrl, httpVersion: '1.1', useBinaryFormat: true, useHttpGet: true }),
  },
  {
    name: 'Connect over HTTP/2',
    clientStreams: true,
    bidiStreams: true,
    codec: 'protobuf-es',
    transport: (baseUrl) => createConnectTransport({ baseUrl, httpVersion: '2', useBinaryFormat: true }),
  },
  {
    name: 'gRPC-Web',
    clientStreams: false,
    bidiStreams: false,
    codec: 'protobuf-es',
    transport: (baseUrl) => createGrpcWebTransport({ baseUrl }),
  },
  {
    name: 'gRPC by connect-node',
    clientStreams: true,
    bidiStreams: true,
    codec: 'protobuf-es',
    transport: (baseUrl) => createGrpcTransport({ baseUrl }),
  },
  GRPC_JS,
];

export interface WiresClient extends WireClient {
  readonly server: Client<typeof ServerService>;
}

export function connect(wire: Wire, url: string): WiresClient {
  const transport = wire.transport(url);
  return {
    trajectories: createClient(TrajectoryService, transport),
    states: createClient(StateService, transport),
    runs: createClient(RunService, transport),
    rollouts: createClient(RolloutService, transport),
    server: createClient(ServerService, transport),
  };
}
