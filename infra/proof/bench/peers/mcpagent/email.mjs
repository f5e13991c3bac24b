// workerd alone has no cloudflare:email, which agents imports and the benchmark never uses.
export class EmailMessage {}
