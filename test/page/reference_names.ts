import type { DescFile, DescMessage, DescService } from '@bufbuild/protobuf';

/**
 * Returns the anchors of services, RPCs, messages, fields and enum values in the files of services and what they
 * import.
 */
export function expectedNames(services: readonly DescService[]): string[] {
  const files = new Set<DescFile>();
  for (const { file } of services) addWithImports(file, files);
  return [...files].flatMap((file) => [
    ...file.services.flatMap(({ name, methods }) => [name, ...methods.map((method) => `${name}.${method.name}`)]),
    ...file.messages.flatMap(messageNames),
    ...file.enums.flatMap(({ name, values }) => [name, ...values.map((value) => `${name}.${value.localName}`)]),
  ]);
}

function addWithImports(file: DescFile, found: Set<DescFile>): void {
  if (file.proto.package !== 'anabranch.v1' || found.has(file)) return;
  found.add(file);
  for (const dependency of file.dependencies) addWithImports(dependency, found);
}

function messageNames({ typeName, fields, nestedMessages }: DescMessage): string[] {
  const name = typeName.slice('anabranch.v1.'.length);
  return [name, ...fields.map((field) => `${name}.${field.name}`), ...nestedMessages.flatMap(messageNames)];
}
