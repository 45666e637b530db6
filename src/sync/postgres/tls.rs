//! TLS as libpq's `sslmode` means it, by rustls with ring.
//!
//! ```text
//! disable, prefer, require   any certificate        verify-ca   a trusted chain        verify-full   … and the host name
//! ```
//!
//! The handshake's signatures are verified in every mode; what differs is which certificate is believed. Neither this nor
//! libpq protects against an impostor below `verify-ca`. The library reads X.509 of version 3 only; an older certificate is
//! recognised and named, since whoever made it by accident (openssl's default for a signing request) would not find out.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::VERSION_1;
use super::options::{PostgresOptions, TlsMode};
use crate::error::{Error, ErrorCode, Result};

/// What connects by TLS where the options ask for it.
///
/// # Errors
/// `CONFIG_INVALID` for certificates that cannot be read.
pub(super) fn connector(options: &PostgresOptions) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier { chain: chain_verifier(options, &provider)?, mode: options.tls, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::internal(format!("connection {:?}: no TLS version is usable: {error}", options.name)))?
        .dangerous() // rustls's word for every verifier but its own
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// The verifier of chains, for the modes that verify.
fn chain_verifier(options: &PostgresOptions, provider: &Arc<CryptoProvider>) -> Result<Option<Arc<WebPkiServerVerifier>>> {
    if !matches!(options.tls, TlsMode::VerifyCa | TlsMode::VerifyFull) {
        return Ok(None);
    }
    let invalid = |what: String| {
        Error::new(
            ErrorCode::ConfigInvalid,
            format!(
                "connection {:?}: {what}. Remedy: let sslrootcert name a PEM file of the certificates to trust, or 'system'",
                options.name
            ),
        )
    };
    let mut roots = RootCertStore::empty();
    match &options.root_certificates {
        Some(path) => read_roots(path, &mut roots).map_err(invalid)?,
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|_| invalid("there is no certificate to trust".into()))?;
    Ok(Some(verifier))
}

fn read_roots(path: &Path, roots: &mut RootCertStore) -> Result<(), String> {
    let name = path.display();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|_| format!("sslrootcert {name:?} cannot be read as PEM"))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|_| format!("sslrootcert {name:?} is not a PEM file of certificates"))?;
        roots.add(certificate).map_err(|_| format!("sslrootcert {name:?} holds a certificate that cannot be used"))?;
    }
    Ok(())
}

/// Believes a certificate as far as the mode asks.
#[derive(Debug)]
struct Verifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    mode: TlsMode,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if is_version_1(end_entity) {
            return Err(rustls::Error::General(VERSION_1.into()));
        }
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is looked at last: with this error the chain is good.
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }))
                if self.mode == TlsMode::VerifyCa =>
            {
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Whether a certificate lacks the version that every later one begins with: `SEQUENCE { SEQUENCE { [0] version, …`.
fn is_version_1(certificate: &[u8]) -> bool {
    let inner = |bytes| der_content(bytes, 0x30);
    inner(certificate).and_then(inner).is_some_and(|body| body.first().is_some_and(|tag| *tag != 0xa0))
}

/// What is in the element of this tag at the front of `bytes`.
fn der_content(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    let (found, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first()?;
    // A length of 128 and more is the number of the bytes that hold it.
    let skipped = if *length < 0x80 { 0 } else { usize::from(length & 0x7f) };
    rest.get(skipped..).filter(|_| *found == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_certificate_is_seen_at_any_length() {
        for (certificate, is_first) in [
            (&[0x30, 9, 0x30, 7, 0xa0, 3, 2, 1, 2, 2, 0][..], false),
            (&[0x30, 9, 0x30, 7, 0x02, 1, 5][..], true),
            (&[0x30, 0x82, 1, 9, 0x30, 0x81, 200, 0xa0, 3, 2, 1, 2][..], false),
            (&[0x30, 0x82, 1, 9, 0x30, 0x81, 200, 0x02, 1, 5][..], true),
            (&[0x30, 0x82][..], false),
            (&[][..], false),
        ] {
            assert_eq!(is_version_1(certificate), is_first, "{certificate:x?}");
        }
    }
}
