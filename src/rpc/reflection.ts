import {
  create,
  createRegistry,
  type DescFile,
  type DescService,
  fromBinary,
  type MessageShape,
  type Registry,
  toBinary,
} from '@bufbuild/protobuf';
import { FileDescriptorProtoSchema } from '@bufbuild/protobuf/wkt';
import { Code } from '@connectrpc/connect';
import { file_anabranch_v1_error } from '../../gen/es/anabranch/v1/error_pb.js';
import { file_google_rpc_error_details } from '../../gen/es/google/rpc/error_details_pb.js';
import {
  ErrorResponseSchema,
  ExtensionNumberResponseSchema,
  FileDescriptorResponseSchema,
  ListServiceResponseSchema,
  ServerReflection as ReflectionV1,
  ServerReflectionRequestSchema as RequestV1,
  ServerReflectionResponseSchema as ResponseV1,
  type ServerReflectionRequest,
  type ServerReflectionResponse,
} from '../../gen/es/grpc/reflection/v1/reflection_pb.js';
import {
  ServerReflection as ReflectionV1Alpha,
  ServerReflectionRequestSchema as RequestV1Alpha,
  ServerReflectionResponseSchema as ResponseV1Alpha,
} from '../../gen/es/grpc/reflection/v1alpha/reflection_pb.js';
import type { Call } from '../service/method.ts';
import type { Serve } from './adapter.ts';
import { handlers, type Wire } from './call.ts';
import { aborted } from './health.ts';

/** Server reflection, v1 and v1alpha (for older versions of grpcurl), so that tools need no protos. */
export function serveReflection(serve: Serve, wire: Wire, services: readonly DescService[]): void {
  const schema = new Schema([...services, ReflectionV1, ReflectionV1Alpha]);
  const v1 = (request: ServerReflectionRequest) =>
    create(ResponseV1, {
      validHost: request.host,
      originalRequest: request,
      messageResponse: schema.answer(request.messageRequest),
    });
  // Both versions have the same fields, so the bytes of one are read as the other.
  const v1Alpha = (request: MessageShape<typeof RequestV1Alpha>) =>
    fromBinary(ResponseV1Alpha, toBinary(ResponseV1, v1(fromBinary(RequestV1, toBinary(RequestV1Alpha, request)))));
  serve(ReflectionV1, handlers(wire, ReflectionV1, { serverReflectionInfo: answerEach(v1) }), true);
  serve(ReflectionV1Alpha, handlers(wire, ReflectionV1Alpha, { serverReflectionInfo: answerEach(v1Alpha) }), true);
}

function answerEach<Request, Response>(answer: (request: Request) => Response) {
  return async function* (requests: AsyncIterable<Request>, { app, signal }: Call): AsyncGenerator<Response> {
    const frames = requests[Symbol.asyncIterator]();
    const left = aborted(signal);
    for (;;) {
      const next = await app.drain.race(Promise.race([frames.next(), left]));
      if (next === undefined || next.done === true) return;
      yield answer(next.value);
    }
  };
}

type Question = ServerReflectionRequest['messageRequest'];
type Answer = ServerReflectionResponse['messageResponse'];

/** Types that no service refers to but responses contain: the details of errors, so that tools can decode them. */
const IN_ERRORS = [file_google_rpc_error_details, file_anabranch_v1_error];

/** The descriptors of the services, of their dependencies, and of the details of their errors. */
class Schema {
  readonly #services: readonly DescService[];
  readonly #files = new Map<string, DescFile>();
  readonly #types: Registry;
  /** Each file is encoded once: encoding takes milliseconds. */
  readonly #encoded = new Map<DescFile, Uint8Array>();

  constructor(services: readonly DescService[]) {
    this.#services = services;
    for (const file of [...services.map((service) => service.file), ...IN_ERRORS]) this.#collect(file);
    this.#types = createRegistry(...this.#files.values());
  }

  answer(question: Question): Answer {
    switch (question.case) {
      case 'listServices':
        return listed(this.#services.map(({ typeName }) => typeName));
      case 'fileByFilename':
        return this.#file(this.#files.get(question.value), `file ${question.value}`);
      case 'fileContainingSymbol':
        return this.#file(this.#fileOf(question.value), `symbol ${question.value}`);
      case 'fileContainingExtension': {
        const { containingType, extensionNumber } = question.value;
        const extendee = this.#types.getMessage(containingType);
        const found = extendee && this.#types.getExtensionFor(extendee, extensionNumber);
        return this.#file(found?.file, `extension ${extensionNumber} of ${containingType}`);
      }
      case 'allExtensionNumbersOfType':
        return this.#extensionsOf(question.value);
      default:
        return failed(Code.InvalidArgument, 'message_request must be set');
    }
  }

  #collect(file: DescFile): void {
    const name = file.proto.name;
    if (this.#files.has(name)) return;
    this.#files.set(name, file);
    for (const dependency of file.dependencies) this.#collect(dependency);
  }

  /** Finds the file of a type or of its member: a method, a field, a value. */
  #fileOf(symbol: string): DescFile | undefined {
    const type = this.#types.get(symbol);
    if (type !== undefined) return type.file;
    const dot = symbol.lastIndexOf('.');
    const owner = dot === -1 ? undefined : this.#types.get(symbol.slice(0, dot));
    const member = symbol.slice(dot + 1);
    switch (owner?.kind) {
      case 'service':
        return owner.methods.some(({ name }) => name === member) ? owner.file : undefined;
      case 'message':
        return owner.fields.some(({ name }) => name === member) ? owner.file : undefined;
      case 'enum':
        return owner.values.some(({ name }) => name === member) ? owner.file : undefined;
      default:
        return undefined;
    }
  }

  /**
   * Returns a file with all its dependencies, each before the files that it imports, so that one response is enough.
   */
  #file(file: DescFile | undefined, wanted: string): Answer {
    if (file === undefined) return failed(Code.NotFound, `This server has no ${wanted}.`);
    const importedFirst = new Set<DescFile>();
    const seen = new Set<DescFile>();
    const collect = (next: DescFile) => {
      if (seen.has(next)) return;
      seen.add(next);
      for (const dependency of next.dependencies) collect(dependency);
      importedFirst.add(next);
    };
    collect(file);
    const files = [...importedFirst].reverse();
    const fileDescriptorProto = files.map((each) => this.#encode(each));
    return { case: 'fileDescriptorResponse', value: create(FileDescriptorResponseSchema, { fileDescriptorProto }) };
  }

  #encode(file: DescFile): Uint8Array {
    const bytes = this.#encoded.get(file) ?? toBinary(FileDescriptorProtoSchema, file.proto);
    this.#encoded.set(file, bytes);
    return bytes;
  }

  #extensionsOf(typeName: string): Answer {
    if (this.#types.getMessage(typeName) === undefined)
      return failed(Code.NotFound, `Type ${typeName} does not exist on this server.`);
    const extensionNumber: number[] = [];
    for (const type of this.#types) {
      if (type.kind === 'extension' && type.extendee.typeName === typeName) extensionNumber.push(type.number);
    }
    const value = create(ExtensionNumberResponseSchema, { baseTypeName: typeName, extensionNumber });
    return { case: 'allExtensionNumbersResponse', value };
  }
}

function listed(names: readonly string[]): Answer {
  const service = names.map((name) => ({ name }));
  return { case: 'listServicesResponse', value: create(ListServiceResponseSchema, { service }) };
}

function failed(errorCode: Code, errorMessage: string): Answer {
  return { case: 'errorResponse', value: create(ErrorResponseSchema, { errorCode, errorMessage }) };
}
