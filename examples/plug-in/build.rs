//! Compiles `proto/echo.proto` in Rust, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let described = protox::compile(["echo.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".echo").compile_fds(described)?;
    Ok(())
}
